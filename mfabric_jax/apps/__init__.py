"""Questions that users ask, one folder each. An app uses the core and no other app, so each can be deleted."""
