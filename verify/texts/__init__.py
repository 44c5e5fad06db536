"""The texts that privctl writes into reports, as closed lists: any other may mean anything."""
