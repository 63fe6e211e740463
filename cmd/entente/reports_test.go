package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func TestUsageIsStatedAndCounted(t *testing.T) {
	golden(t, "usage", peered(),
		[]string{"usage"}, []string{"usage", "7f3c9a", "-o", "csv"}, []string{"usage", "-o", "json"}, []string{"usage", "-o", "xml"},
	)
	golden(t, "usage-none", newWorld(), []string{"usage"}, []string{"usage", "-o", "csv"})
}

func TestPolicyTestShowsTheOfferAndItsReasons(t *testing.T) {
	w := peered()
	golden(t, "policy", w,
		[]string{"policy", "test"}, []string{"policy", "test", "provider", "--resources", "cpu=4,memory=8Gi", "--node-selector", "pool=guests"},
		[]string{"policy", "test", "lab"}, []string{"policy", "test", "lab", "-o", "json"},
	)
	sent(t, w.consumer, "TestPolicy peers/- nothing for 0s nodes=", "TestPolicy peers/provider cpu 4, memory 8Gi for 0s nodes=pool=guests",
		"TestPolicy peers/lab nothing for 0s nodes=", "TestPolicy peers/lab nothing for 0s nodes=")
}

func TestNetworkIsShownAndPlanned(t *testing.T) {
	w := peered()
	golden(t, "network", w,
		[]string{"network", "status"}, []string{"network", "status", "provider", "-o", "wide"}, []string{"network", "status", "provider", "-o", "json"},
		[]string{"network", "status", "--get", "paths[*].state"},
		[]string{"network", "plan"}, []string{"network", "plan", "provider"}, []string{"network", "plan", "lab", "-o", "yaml"},
		[]string{"network", "plan", "--prefix", "10.244.0.0/16"},
	)
	sent(t, w.consumer, "PlanNetwork peers/-", "PlanNetwork peers/provider", "PlanNetwork peers/lab", "PlanNetwork  10.244.0.0/16")
}

func TestInfoExitsWithThreeWhenUnhealthy(t *testing.T) {
	w := newWorld()
	golden(t, "info-alone", w, []string{"info"}, []string{"info", "peer"}, []string{"info", "peer", "-o", "json"})
	w = peered()
	golden(t, "info", w,
		[]string{"info"}, []string{"info", "-o", "json"}, []string{"info", "--get", "cluster.clusterId"}, []string{"info", "--get", "healthy"},
		[]string{"info", "--get", "peers[0].tunnel.up"},
		[]string{"info", "peer"}, []string{"info", "peer", "provider", "-o", "yaml"},
		[]string{"info", "peer", "provider", "--get", "tunnel.roundTrip"}, []string{"info", "peer", "provider", "--get", "contracts[*].phase"},
		[]string{"info", "peer", "provider", "--get", `labels["topology.kubernetes.io/region"]`}, []string{"info", "peer", "provider", "--get", "tunnel", "-o", "yaml"},
		[]string{"info", "peer", "provider", "--get", "nothing"}, []string{"info", "peer", "provider", "--get", "contracts[7]"},
		[]string{"info", "peer", "provider", "--get", "contracts["}, []string{"info", "peer", "provider", "--get", "name.first"}, []string{"info", "peer", "nobody"},
	)
	w.granted = true
	golden(t, "info-all-granted", w, []string{"info", "peer", "provider"})
	w.granted, w.pending = false, true
	golden(t, "info-pending", w, []string{"info", "peer", "provider"})
	w.pending, w.stuck = false, "Network"
	golden(t, "info-unhealthy", w, []string{"info"}, []string{"info", "--get", "healthy"}, []string{"info", "peer", "provider", "--get", "conditions[2].status"})
	w.stuck, w.problems = "", []string{"two agents are ready\x1b[31m", "the fabric is not running on node a"}
	golden(t, "info-problems", w, []string{"info"}, []string{"info", "--get", "problems"})
}

func TestInfoShowsTheCodeOfAPeerThatWaitsForApproval(t *testing.T) {
	for _, tt := range []struct {
		decision string
		joined   bool
		want     string
	}{
		{"", false, "before you approve"}, {"Approved", false, "before it approves"}, {"Denied", false, ""}, {"Approved", true, ""}, {"", true, ""},
	} {
		w := newWorld()
		w.introduced, w.joined, w.decision = true, tt.joined, tt.decision
		out, errOut, code := w.run(t, "", "info", "peer", "provider")
		if code != exit.OK || strings.Contains(out, "042 917") != (tt.want != "") || !strings.Contains(out, tt.want) {
			t.Errorf("decision %q, joined %v: exit %d\n%s%s", tt.decision, tt.joined, code, out, errOut)
		}
	}
}

func TestInfoSaysHowAPolicysPeerWasFound(t *testing.T) {
	w := peered()
	w.policy, w.introduced, w.decision = "home", true, "Approved"
	golden(t, "policy-peer", w, []string{"info", "peer", "provider"}, []string{"unpeer", "provider", "--forget", "--yes"})
}

func TestWatchReconnects(t *testing.T) {
	for _, args := range [][]string{{"watch", "events", "provider"}, {"watch", "peers"}, {"watch", "events", "-o", "json"}, {"watch", "peers", "-o", "yaml"}} {
		golden(t, "watch-"+args[1]+map[bool]string{true: "-" + args[len(args)-1]}[len(args) == 4], peered(), args)
	}
}

func TestWatchEndsWhenInterrupted(t *testing.T) {
	w := peered()
	w.interrupt = true
	if out, errOut, code := w.run(t, "", "watch", "events"); code != exit.OK {
		t.Errorf("exit %d\n%s%s", code, out, errOut)
	}
}

func TestWatchBacksOffBetweenAttempts(t *testing.T) {
	var pauses []time.Duration
	clock, opened := epoch, 0
	ctx, cancel := context.WithCancel(t.Context())
	a := &app{out: t.Output(), errOut: t.Output(), now: func() time.Time { return clock }}
	a.sleep = func(_ context.Context, d time.Duration) error {
		if pauses = append(pauses, d); len(pauses) == 9 {
			cancel()
		}
		return ctx.Err()
	}
	open := func(context.Context) (grpc.ServerStreamingClient[ententev1.WatchEventsResponse], error) {
		if opened++; opened == 7 {
			clock = clock.Add(time.Minute) // it lasted
		}
		return nil, failure(peering.ReasonStopping, "the agent is about to stop")
	}
	if err := watch(ctx, &run{app: a, cluster: &cluster{label: "local"}}, "watch events", open, nil); err != nil {
		t.Fatal(err)
	}
	const s = time.Second
	if want := []time.Duration{2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s, 2 * s, 4 * s, 8 * s}; !slices.Equal(pauses, want) {
		t.Errorf("got %v, want %v", pauses, want)
	}
}

// quiet is a watch that brings nothing: it was let through if it has a header.
type quiet struct {
	grpc.ServerStreamingClient[ententev1.WatchEventsResponse]
	header metadata.MD
}

func (q quiet) Header() (metadata.MD, error) { return q.header, nil }
func (q quiet) Recv() (*ententev1.WatchEventsResponse, error) {
	return nil, failure(peering.ReasonStopping, "the agent is about to stop")
}

// After a message that a watch was lost the user has to learn that it is back.
func TestWatchReportsThatItIsBack(t *testing.T) {
	const broke, back = "the watch broke off", "the watch continues"
	for name, tc := range map[string]struct {
		headers []metadata.MD
		want    []string
	}{
		"it never broke off":             {[]metadata.MD{{}}, []string{broke}},
		"it is back":                     {[]metadata.MD{{}, {}}, []string{broke, back, broke}},
		"it is refused at first":         {[]metadata.MD{{}, nil, nil, {}}, []string{broke, broke, broke, back, broke}},
		"it was away from the beginning": {[]metadata.MD{nil, {}}, []string{broke, back, broke}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var errOut strings.Builder
			a := &app{out: t.Output(), errOut: &errOut, now: func() time.Time { return epoch }}
			opened := 0
			a.sleep = func(context.Context, time.Duration) error {
				if opened == len(tc.headers) {
					cancel()
				}
				return ctx.Err()
			}
			open := func(context.Context) (grpc.ServerStreamingClient[ententev1.WatchEventsResponse], error) {
				opened++
				return quiet{header: tc.headers[opened-1]}, nil
			}
			if err := watch(ctx, &run{app: a, cluster: &cluster{label: "local"}}, "watch events", open, nil); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(errOut.String()), "\n")
			ok := len(lines) == len(tc.want)
			for i := range lines {
				ok = ok && strings.Contains(lines[i], "NOTE   (local) "+tc.want[i])
			}
			if !ok {
				t.Errorf("it says %q, want %q", lines, tc.want)
			}
		})
	}
}

func TestOffloadSaysToWhomANamespaceIsOpen(t *testing.T) {
	w := peered()
	offload := func(to string) []string { return []string{"offload", "namespace", "data", "--open-to", to} }
	golden(t, "offload-open-to", w, offload("shop,soph"), offload("*"), offload(""))
	sent(t, w.consumer,
		"OffloadNamespace namespaces/data   [] open to [namespaces/shop namespaces/soph]",
		"OffloadNamespace namespaces/data   [] open to [namespaces/-]",
		"OffloadNamespace namespaces/data   [] open to []",
	)
}

func TestUnoffloadSaysToWhomANamespaceWasOpen(t *testing.T) {
	golden(t, "unoffload-open-to", peered(), []string{"unoffload", "namespace", "data"}, []string{"unoffload", "namespace", "login"}, []string{"unoffload", "namespace", "data", "-o", "json"})
}

func TestSmallCommandsPrintTheirResults(t *testing.T) {
	w := newWorld()
	golden(t, "small", w,
		[]string{"offload", "namespace", "shop"}, []string{"offload", "namespace", "shop", "--strategy", "Remote", "--mapping", "Same", "--peer", "office", "--peer", "lab", "-o", "yaml"},
		[]string{"offload", "namespace", "shop", "--strategy", "Both"}, []string{"offload", "namespace", "shop", "--remote-name", "rome-shop", "-o", "json"},
		[]string{"offload", "namespace", "shop", "--peer-lost", "fence=10m"}, []string{"offload", "namespace", "shop", "--peer-lost", "fence=1m"},
		[]string{"offload", "namespace", "shop", "--home-api", "Allowed"}, []string{"offload", "namespace", "shop", "--all-peers"},
		[]string{"unoffload", "namespace", "shop"}, []string{"unoffload", "namespace", "home"}, []string{"unoffload", "namespace", "shop", "-o", "json"},
		[]string{"identity", "rollover"}, []string{"identity", "rollover", "-o", "json"},
		[]string{"version"}, []string{"version", "--client", "-o", "json"},
	)
	sent(t, w.consumer,
		"OffloadNamespace namespaces/shop   []", "OffloadNamespace namespaces/shop Remote Same [office lab]",
		"OffloadNamespace namespaces/shop  rome-shop []",
		"OffloadNamespace namespaces/shop   [] Fence 10m0s",
		"OffloadNamespace namespaces/shop   [] home API Allowed",
		"OffloadNamespace namespaces/shop   [peers/-]",
		"UnoffloadNamespace namespaces/shop", "UnoffloadNamespace namespaces/home", "UnoffloadNamespace namespaces/shop", "RolloverIdentity", "RolloverIdentity",
	)
}

func TestOffloadingsShowTheStateAtEachProvider(t *testing.T) {
	golden(t, "offloadings", peered(), []string{"offloadings"}, []string{"offloadings", "-o", "wide"}, []string{"offloadings", "-o", "json"})
	golden(t, "offloadings-none", newWorld(), []string{"offloadings"}, []string{"offloadings", "-o", "json"})
}

func TestInfoShowsCordonedNodes(t *testing.T) {
	w := peered()
	w.cordoned = true
	golden(t, "info-cordoned", w, []string{"info"}, []string{"info", "peer", "provider"})
}
