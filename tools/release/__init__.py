"""Programs for releasing a package."""
