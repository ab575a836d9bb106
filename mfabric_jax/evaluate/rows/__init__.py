"""Turn resolved cases into rows: compute blocks of cases, fill columns, record provenance."""
