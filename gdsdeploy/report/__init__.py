"""What a validation found, as text, JSON, JUnit or HTML: each module turns a report into a text and does no more."""
