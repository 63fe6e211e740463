package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// watchAgain is how long to wait after a watch broke off, at first and at most: the pause
// doubles until a watch has lasted for longer.
const watchAgain, watchAgainLast = 2 * time.Second, 30 * time.Second

func (a *app) watchCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "watch",
		Short: "Watch peers, or what happens to them, until interrupted",
	}, a.watchEventsCommand(), a.watchPeersCommand())
}

func (a *app) watchEventsCommand() *cobra.Command {
	var output outputFlags
	cmd := &cobra.Command{
		Use:   "events [PEER]",
		Short: "Print what happens to peers, peerings and contracts, from now on",
		Long: `Print what happens to peers, peerings and contracts, from now on and until
interrupted. What happens while the agent cannot be reached is not printed later.

As JSON it is a line an event, as YAML a document.`,
		Example: indent("entente watch events\nentente watch events office --get message"),
		Args:    args(cobra.MaximumNArgs(1)),
		RunE: a.onLocal(&output, func(ctx context.Context, c *cluster, argv []string) error {
			req := &ententev1.WatchEventsRequest{}
			if len(argv) == 1 {
				req.Peer = peerName(argv[0])
			}
			l := a.lines(&output, []int{20, 12, 20, 12}, "TIME", "PEER", "SUBJECT", "REASON", "MESSAGE")
			return watch(ctx, a, c, "watch events", func(ctx context.Context) (grpc.ServerStreamingClient[ententev1.WatchEventsResponse], error) {
				return c.admin.WatchEvents(ctx, req)
			}, func(e *ententev1.WatchEventsResponse) error {
				return l.write(e, moment(e.GetTime()), short(e.GetPeer()), e.GetSubject(), e.GetReason(), e.GetMessage())
			})
		}),
	}
	output.add(cmd, formTable)
	return a.completes(cmd, 1, peerNames)
}

func (a *app) watchPeersCommand() *cobra.Command {
	var output outputFlags
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "Show the state of each peer, and again whenever it changes",
		Long: `Show the state of each peer, and again whenever it changes, until interrupted.

As JSON it is a line a change, as YAML a document: the peer, and whether it was
forgotten.`,
		Example: indent("entente watch peers"),
		Args:    args(cobra.NoArgs),
		RunE: a.onLocal(&output, func(ctx context.Context, c *cluster, _ []string) error {
			l := a.lines(&output, []int{20, 12, 10}, "TIME", "NAME", "ROLE", "TRUSTED", "CONNECTED", "NETWORK", "OFFLOADING", "WHY")
			told := map[string]string{}
			return watch(ctx, a, c, "watch peers", func(ctx context.Context) (grpc.ServerStreamingClient[ententev1.WatchPeersResponse], error) {
				return c.admin.WatchPeers(ctx, &ententev1.WatchPeersRequest{})
			}, func(m *ententev1.WatchPeersResponse) error {
				if m.GetSynced() {
					return nil
				}
				p := m.GetPeer()
				row := []string{shortName(p), p.GetRole(), trustStatus(p), statusOf(p, "Connected"), networkStatus(p), statusOf(p, "Offloading"), worst(p)}
				if m.GetForgotten() {
					row = []string{shortName(p), "forgotten"}
				}
				// After a break all peers come again.
				if key := strings.Join(row, "\x00"); !output.structured() {
					if told[shortName(p)] == key {
						return nil
					}
					told[shortName(p)] = key
				}
				return l.write(m, append([]string{a.now().UTC().Format(time.RFC3339)}, row...)...)
			})
		}),
	}
	output.add(cmd, formTable)
	return a.completes(cmd, 0, nil)
}

// worst is the first thing that is wrong with a peer.
func worst(p *ententev1.Peer) string {
	if wrong := problemsOf(p); len(wrong) > 0 {
		return strings.TrimPrefix(wrong[0], "peer "+shortName(p)+": ")
	}
	return ""
}

// watch passes on what a stream brings until ctx ends, and opens it again where
// it broke off.
func watch[M any](ctx context.Context, a *app, c *cluster, doing string, open func(context.Context) (grpc.ServerStreamingClient[M], error), tell func(*M) error) error {
	pause := watchAgain
	for {
		began := a.now()
		err := drainStream(ctx, open, tell)
		if a.now().Sub(began) > watchAgainLast {
			pause = watchAgain
		}
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // interrupting is how a watch ends
		case err != nil && !passes(err) && client.ReasonOf(err) != "READER_TOO_SLOW":
			return c.call(doing, err)
		case err != nil:
			_, _ = fmt.Fprintf(a.errOut, " NOTE   (%s) the watch broke off (%s); trying again\n", c.label, clean(client.Explain(err)))
		}
		if a.sleep(ctx, pause) != nil {
			return nil //nolint:nilerr // as above
		}
		pause = min(2*pause, watchAgainLast)
	}
}

func drainStream[M any](ctx context.Context, open func(context.Context) (grpc.ServerStreamingClient[M], error), tell func(*M) error) error {
	stream, err := open(ctx)
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := tell(m); err != nil {
			return err
		}
	}
}

// lines prints what a watch brings, one after the other.
type lines struct {
	app    *app
	output *outputFlags
	// header is printed with the first line.
	header []string
	widths []int
}

// lines begins to print. The widths are those of the first columns at least: what
// comes later is not known.
func (a *app) lines(output *outputFlags, widths []int, header ...string) *lines {
	return &lines{app: a, output: output, header: header, widths: widths}
}

// write prints a message, or for people its cells, in columns that widen with
// what comes.
func (l *lines) write(m proto.Message, cells ...string) error {
	if l.output.structured() {
		v, err := plainJSON(m)
		if err != nil {
			return err
		}
		if l.output.get != "" {
			return l.output.writeValue(l.app.out, v)
		}
		if l.output.form == formYAML {
			b, err := yaml.Marshal(v)
			if err != nil {
				return fmt.Errorf("write YAML: %w", err)
			}
			_, err = fmt.Fprintf(l.app.out, "---\n%s", b)
			return err
		}
		enc := json.NewEncoder(l.app.out)
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	}
	t := l.app.table(l.header...)
	t.widths, l.header = l.widths, nil
	t.row(cells...)
	t.flush()
	l.widths = t.widths
	return nil
}
