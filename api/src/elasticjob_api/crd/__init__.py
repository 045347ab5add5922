"""From the models to the CRD: its schema, the rules in CEL, and what `make generate` writes."""
