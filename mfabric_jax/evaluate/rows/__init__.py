"""Turn resolved cases into rows: blocks of cases, columns, provenance."""
