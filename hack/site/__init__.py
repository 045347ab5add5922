"""The docs site: what mkdocs.yml does not say."""
