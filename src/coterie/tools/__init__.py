"""Built-in tools by subject, and the loading of plug-ins."""
