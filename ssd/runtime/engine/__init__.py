"""The loop and what it works on: sequences, pages, batches, trees and their verification."""
