"""Chats with images, audio and video, through a processor, into packs and batches."""
