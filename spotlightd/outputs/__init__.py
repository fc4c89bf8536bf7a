"""What a run leaves behind for others: an adapter file, a merged model, sample grids, a card."""
