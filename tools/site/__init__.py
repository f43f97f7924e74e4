"""The documentation site: pages generated from the code, and mkdocs hooks for the other pages."""
