"""The texts that privctl writes into reports, as closed lists, since any other text may mean anything."""
