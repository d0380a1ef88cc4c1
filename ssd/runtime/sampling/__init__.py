"""What a request asks for: how its tokens are drawn, what its logits go through, and its text."""
