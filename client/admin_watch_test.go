package client_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/peering"
)

func TestAListIsAllPages(t *testing.T) {
	agent := newFakeAgent()
	agent.peers = append(agent.peers, peer("third", ""))
	admin, stop := agent.dial()
	defer stop()
	var got []string
	for p, err := range admin.Peers(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, p.GetName())
	}
	if diff := cmp.Diff([]string{"peers/home-lab", "peers/office", "peers/third"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for range admin.Peers(t.Context()) {
		break // which asks for no other page
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	n := 0
	for p, err := range admin.Peers(ended) {
		if n++; p != nil || client.ReasonOf(err) != "CANCELED" {
			t.Errorf("got %v, %v", p, err)
		}
	}
	if n != 1 {
		t.Errorf("an error comes %d times", n)
	}
	for range admin.Tokens(t.Context()) { // Unimplemented here
		n++
	}
	if n != 2 {
		t.Errorf("an error comes %d times", n-1)
	}
}

// TestAWatchThatBreaksIsBegunAgain is about the agent's restarts and failovers.
func TestAWatchThatBreaksIsBegunAgain(t *testing.T) {
	agent := newFakeAgent()
	var calls atomic.Int32
	agent.watch = func(_ *ententev1.WatchEventsRequest, stream grpc.ServerStreamingServer[ententev1.WatchEventsResponse]) error {
		if err := stream.SendHeader(nil); err != nil {
			return err
		}
		n := calls.Add(1)
		if err := stream.Send(&ententev1.WatchEventsResponse{Reason: strings.Repeat("I", int(n))}); err != nil {
			return err
		}
		switch n {
		case 1:
			return refuse(peering.ReasonStopping, "the agent is about to stop")
		case 2:
			return refuse(peering.ReasonReaderTooSlow, "read faster")
		}
		return refuse(peering.ReasonCallerNotAllowed, "you may not, any more")
	}
	admin, stop := agent.dial()
	defer stop()
	var got []string
	for e, err := range admin.Events(t.Context(), "") {
		switch {
		case err != nil:
			got = append(got, string(client.ReasonOf(err)))
		case e == nil:
			got = append(got, "begin")
		default:
			got = append(got, e.GetReason())
		}
	}
	if diff := cmp.Diff([]string{"begin", "I", "begin", "II", "begin", "III", "CALLER_NOT_ALLOWED"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for range admin.Events(t.Context(), "") {
		break
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	agent.watch = func(_ *ententev1.WatchEventsRequest, _ grpc.ServerStreamingServer[ententev1.WatchEventsResponse]) error {
		return refuse(peering.ReasonStopping, "always")
	}
	var last error
	for _, err := range admin.Events(ctx, "") {
		last = err
	}
	if last == nil || ctx.Err() == nil {
		t.Errorf("the end of the context: got %v", last)
	}
}

func TestTheErrorOfWaitingNamesWhatIsMissing(t *testing.T) {
	agent := newFakeAgent()
	admin, stop := agent.dial()
	defer stop()
	wait := func(d time.Duration, name string) error {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		_, err := admin.WaitForPeering(ctx, name)
		return err
	}
	if err := wait(time.Minute, "peerings/nope"); client.ReasonOf(err) != "PEERING_UNKNOWN" {
		t.Errorf("one that is not there: got %v", err)
	}
	for name, tc := range map[string]struct {
		change func(*ententev1.Peering)
		want   string
	}{
		"nothing happened yet": {func(*ententev1.Peering) {}, "there is no contract: nothing is known yet"},
		"the peer refuses": {func(p *ententev1.Peering) {
			p.Accepted = &ententev1.Condition{Status: "False", Message: "the policy offers nothing"}
		}, "there is no contract: the policy offers nothing"},
		"the node starts": {func(p *ententev1.Peering) {
			p.Accepted, p.Provider = &ententev1.Condition{Status: "True"}, "peers/office"
		}, "the virtual node does not take pods: no contract is in force"},
	} {
		batch := &ententev1.Peering{Name: "peerings/batch", Peer: "peers/office"}
		tc.change(batch)
		agent.mu.Lock()
		agent.peerings["batch"] = batch
		agent.mu.Unlock()
		// Long enough to have asked.
		if err := wait(time.Second, "peerings/batch"); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
	done := make(chan error, 1)
	go func() { done <- wait(time.Minute, "peerings/batch") }()
	waittest.Eventually(t, "it watches", func() bool {
		agent.mu.Lock()
		defer agent.mu.Unlock()
		return len(agent.watchers) > 0
	})
	agent.fulfil("batch", "peers/office")
	if err := <-done; err != nil {
		t.Errorf("got %v", err)
	}
}
