"""What runs for a user: search, explanations, galleries and the page. Never imports torch."""
