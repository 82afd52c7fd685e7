"""The front: an optimizer whose updates run asynchronously."""
