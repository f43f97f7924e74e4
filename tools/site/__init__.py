"""The documentation site: pages that are made from the code, and what mkdocs is told about the others."""
