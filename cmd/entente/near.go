package main

import (
	"context"
	"errors"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	"github.com/entente-dev/entente/peering"
)

// suggest adds known peers with a similar name to the error of an unknown peer. The caller
// needs the right to list peers.
func (r *run) suggest(ctx context.Context, err error) error {
	call, ok := errors.AsType[*exit.CallError](err)
	if !ok || call.Cluster != r.label || client.ReasonOf(err) != peering.ReasonPeerUnknown {
		return err
	}
	peers, listErr := r.peers(ctx)
	if listErr != nil {
		return err // the peer is unknown anyway
	}
	var known []string
	trusted := map[string]bool{}
	for _, p := range peers {
		name := format.ShortName(p)
		known, trusted[name] = append(known, name), format.IsTrue(p, v1alpha1.ConditionTrusted)
	}
	for _, name := range exit.NearNames(client.Facts(err)["peer"], known) {
		text := printer.Clean(name)
		if !trusted[name] {
			text += " (not trusted)"
		}
		call.Near = append(call.Near, text)
	}
	return err
}
