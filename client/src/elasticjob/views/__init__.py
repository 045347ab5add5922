"""What people see: text and HTML from observed data. Pure."""
