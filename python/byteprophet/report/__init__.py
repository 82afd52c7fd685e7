"""What people look at: tables and plots of results."""
