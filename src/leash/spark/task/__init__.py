"""What a task does for its split: take messages, stage and seal them, ack, yield rows."""
