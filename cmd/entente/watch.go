package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	"github.com/entente-dev/entente/cmd/entente/internal/progress"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// watchAgain is how long to wait after a watch broke off, at first and at most: the pause
// doubles until a watch has lasted longer than the latter.
const watchAgain, watchAgainLast = 2 * time.Second, 30 * time.Second

func (a *app) watchCommand() *cobra.Command {
	return a.group(&cobra.Command{Use: "watch", Short: "Watch peers, or what happens to them, until interrupted"}, a.watchEventsCommand(), a.watchPeersCommand())
}

func (a *app) watchEventsCommand() *cobra.Command {
	return a.command(&cobra.Command{Use: "events [PEER]", Short: "Print what happens to peers, peerings and contracts, from now on"}, func(ctx context.Context, r *run) error {
		req := &ententev1.WatchEventsRequest{Peer: peerName(r.first())}
		l := printer.NewLines(a.out, a.colour, []int{20, 12, 20, 12}, "TIME", "PEER", "SUBJECT", "REASON", "MESSAGE")
		return watch(ctx, r, "watch events", func(ctx context.Context) (grpc.ServerStreamingClient[ententev1.WatchEventsResponse], error) {
			return r.admin.WatchEvents(ctx, req)
		}, func(e *ententev1.WatchEventsResponse) error {
			if r.output.Structured() {
				return r.output.WriteNext(a.out, e)
			}
			l.Row(format.Moment(e.GetTime()), format.Short(e.GetPeer()), e.GetSubject(), e.GetReason(), e.GetMessage())
			return nil
		})
	}, printer.FormTable)
}

func (a *app) watchPeersCommand() *cobra.Command {
	return a.command(&cobra.Command{Use: "peers", Short: "Show the state of each peer, and again whenever it changes"}, func(ctx context.Context, r *run) error {
		l := printer.NewLines(a.out, a.colour, []int{20, 12, 10}, "TIME", "NAME", "ROLE", "TRUSTED", "CONNECTED", "NETWORK", "OFFLOADING", "WHY")
		printed := map[string]string{}
		return watch(ctx, r, "watch peers", func(ctx context.Context) (grpc.ServerStreamingClient[ententev1.WatchPeersResponse], error) {
			return r.admin.WatchPeers(ctx, &ententev1.WatchPeersRequest{})
		}, func(m *ententev1.WatchPeersResponse) error {
			if m.GetSynced() {
				return nil
			}
			p := m.GetPeer()
			row := []string{format.ShortName(p), p.GetRole(), format.TrustStatus(p), format.StatusOf(p, v1alpha1.ConditionConnected), format.NetworkStatus(p), format.StatusOf(p, v1alpha1.ConditionOffloading), format.Worst(p)}
			if m.GetForgotten() {
				row = []string{format.ShortName(p), "forgotten"}
			}
			if r.output.Structured() {
				return r.output.WriteNext(a.out, m)
			}
			// A reopened watch sends all peers again.
			if key := fmt.Sprint(row); printed[format.ShortName(p)] != key {
				printed[format.ShortName(p)] = key
				l.Row(append([]string{format.Moment(timestamppb.New(a.now()))}, row...)...)
			}
			return nil
		})
	}, printer.FormTable)
}

// watch passes the messages of a stream to handle until ctx ends, and opens the stream again
// when it breaks off.
func watch[M any](ctx context.Context, r *run, doing string, open func(context.Context) (grpc.ServerStreamingClient[M], error), handle func(*M) error) error {
	pause, lost := watchAgain, false
	note := func(format string, args ...any) {
		_, _ = fmt.Fprintf(r.errOut, " NOTE   (%s) %s\n", r.label, fmt.Sprintf(format, args...))
	}
	for {
		began := r.now()
		err := progress.Drain(ctx, func(ctx context.Context) (grpc.ServerStreamingClient[M], error) {
			stream, err := open(ctx)
			if err != nil || !lost {
				return stream, err
			}
			begun, err := progress.Begins(stream)
			if begun {
				lost = false
				note("the watch continues")
			}
			return stream, err
		}, handle)
		if r.now().Sub(began) > watchAgainLast {
			pause = watchAgain
		}
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // interrupting is how a watch ends
		case err != nil && !progress.Transient(err) && client.ReasonOf(err) != peering.ReasonReaderTooSlow:
			return r.call(doing, err)
		case err != nil:
			lost = true
			note("the watch broke off (%s); trying again", printer.Clean(client.Explain(err)))
		}
		if r.sleep(ctx, pause) != nil {
			return nil //nolint:nilerr // as above
		}
		pause = min(2*pause, watchAgainLast)
	}
}
