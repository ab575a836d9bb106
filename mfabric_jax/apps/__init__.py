"""Questions that users ask, a folder each. An app uses the core; none uses another, so that each can be deleted."""
