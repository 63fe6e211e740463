package main

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
)

func (a *app) requestsCommand() *cobra.Command {
	return a.command(&cobra.Command{Use: "requests [PEER]", Short: "List the requests of peers that you have to approve"}, func(ctx context.Context, r *run) error {
		requests, err := r.requests(ctx, cmp.Or(r.first(), format.AnyPeer))
		if err != nil {
			return err
		}
		return printList(r, requests, "Nothing waits for approval.", "", func() *printer.Table {
			t := a.noted("REQUEST", "RESOURCES", "DURATION", "PRICE CEILING", "AGE", "ON WHAT TERMS")
			for _, r := range requests {
				t.Row(format.Short(r.GetName()), format.Asked(r.GetResources()), format.Span(r.GetDuration(), "-"), format.Money(r.GetPriceCeiling(), "any"), a.since(r.GetCreateTime()), format.AskedTerms(r))
			}
			return t
		})
	}, printer.FormTable)
}

// requestDecision is the command approve request or deny request.
func (a *app) requestDecision(verb, what, did string, decide func(ctx context.Context, c *cluster, name string) error) *cobra.Command {
	var name string
	return a.command(&cobra.Command{
		Use:   "request PEER/ID",
		Short: what,
		PreRunE: func(_ *cobra.Command, argv []string) (err error) {
			name, err = requestName(argv[0])
			return err
		},
	}, func(ctx context.Context, r *run) error {
		if err := decide(ctx, r.cluster, name); err != nil {
			return r.call(verb+" request "+r.argv[0], err)
		}
		r.done(did, format.Short(name))
		if r.output.Structured() {
			return r.writeValue(map[string]any{"name": name})
		}
		return nil
	})
}

// requestName is the name of a request that is given as PEER/ID.
func requestName(s string) (string, error) {
	peer, id, ok := strings.Cut(strings.TrimPrefix(s, "peers/"), "/")
	id = strings.TrimPrefix(id, "requests/")
	if !ok || peer == "" || id == "" || strings.Contains(id, "/") {
		return "", exit.Usagef("request %q: want PEER/ID, as `entente requests` lists them", s)
	}
	return "peers/" + peer + "/requests/" + id, nil
}
