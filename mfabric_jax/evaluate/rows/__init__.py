"""From resolved cases to rows: blocks of cases, columns, provenance."""
