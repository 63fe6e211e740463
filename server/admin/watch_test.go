package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// receiveUntil reads messages of a stream until last accepts one, and returns all of them.
func receiveUntil[T any](t testing.TB, stream grpc.ServerStreamingClient[T], last func(*T) bool) (all []*T) {
	t.Helper()
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %v: %v", all, err)
		}
		all = append(all, m)
		if last(m) {
			return all
		}
	}
}

func TestAWatchSendsPeersAndTheirChanges(t *testing.T) {
	id := strings.Repeat("a", 32)
	a := newAdminTest(t, peerObject("office", id), peerObject("lab", strings.Repeat("b", 32)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := a.alice(t).WatchPeers(ctx, &ententev1.WatchPeersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range receiveUntil(t, stream, (*ententev1.WatchPeersResponse).GetSynced) {
		if !m.GetSynced() {
			names = append(names, m.GetPeer().GetName())
		}
	}
	if diff := cmp.Diff([]string{"peers/lab", "peers/office"}, names); diff != "" {
		t.Errorf("at first (-want +got)\n%s", diff)
	}
	// A change of what belongs to a peer is a change of the peer, and of no other.
	if err := a.client.Create(ctx, contractObject("k1", "office", id, v1alpha1.ContractConsumer, "Active", 3)); err != nil {
		t.Fatal(err)
	}
	for _, m := range receiveUntil(t, stream, func(m *ententev1.WatchPeersResponse) bool { return len(m.GetPeer().GetContracts()) == 1 }) {
		if m.GetPeer().GetName() != "peers/office" {
			t.Errorf("received %s", m.GetPeer().GetName())
		}
	}
	if err := a.client.Delete(ctx, peerObject("lab", "")); err != nil {
		t.Fatal(err)
	}
	all := receiveUntil(t, stream, (*ententev1.WatchPeersResponse).GetForgotten)
	if last := all[len(all)-1].GetPeer(); last.GetName() != "peers/lab" || last.GetClusterId() != "" {
		t.Errorf("forgotten is %v", last)
	}
	// And it can come back.
	if err := a.client.Create(ctx, peerObject("lab", strings.Repeat("c", 32))); err != nil {
		t.Fatal(err)
	}
	receiveUntil(t, stream, func(m *ententev1.WatchPeersResponse) bool {
		return m.GetPeer().GetClusterId() == strings.Repeat("c", 32)
	})
	cancel()
	if !waittest.Soon(func() bool { return a.cache.watching.Load() == 0 }) {
		t.Errorf("%d watches are left behind", a.cache.watching.Load())
	}
}

func TestAWatchSendsEventsFromItsBeginOn(t *testing.T) {
	id, other := strings.Repeat("a", 32), strings.Repeat("b", 32)
	a := newAdminTest(t, peerObject("office", id), peerObject("lab", other), contractObject("k0", "office", id, v1alpha1.ContractConsumer, "Closed", 0))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	watch := func(peer string) grpc.ServerStreamingClient[ententev1.WatchEventsResponse] {
		t.Helper()
		stream, err := a.alice(t).WatchEvents(ctx, &ententev1.WatchEventsRequest{Peer: peer})
		if err != nil {
			t.Fatal(err)
		}
		// The header says that from here on nothing is missed.
		if _, err := stream.Header(); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	all, one, byID := watch(""), watch("peers/office"), watch("peers/"+id)
	k1 := contractObject("k1", "lab", other, v1alpha1.ContractProvider, "", 0)
	if err := a.client.Create(ctx, k1); err != nil {
		t.Fatal(err)
	}
	var fc v1alpha1.ForeignCluster
	if err := a.client.Get(ctx, ctrlclient.ObjectKey{Name: "office"}, &fc); err != nil {
		t.Fatal(err)
	}
	fc.Status.Conditions[0].Status, fc.Status.Conditions[0].Reason = metav1.ConditionFalse, "Denied"
	if err := a.client.Update(ctx, &fc); err != nil {
		t.Fatal(err)
	}
	if err := a.client.Delete(ctx, &fc); err != nil {
		t.Fatal(err)
	}
	reasons := func(stream grpc.ServerStreamingClient[ententev1.WatchEventsResponse]) map[string]bool {
		got := map[string]bool{}
		for _, e := range receiveUntil(t, stream, func(e *ententev1.WatchEventsResponse) bool { return e.GetReason() == "Forgotten" }) {
			got[e.GetSubject()+" "+e.GetReason()] = true
		}
		return got
	}
	office := map[string]bool{"peers/office Denied": true, "peers/office Forgotten": true}
	for name, stream := range map[string]grpc.ServerStreamingClient[ententev1.WatchEventsResponse]{"by name": one, "by ID": byID} {
		if diff := cmp.Diff(office, reasons(stream)); diff != "" {
			t.Errorf("one peer %s (-want +got)\n%s", name, diff)
		}
	}
	got := reasons(all)
	// Kinds are watched apart, so the contract may come after.
	for !got["contracts/k1 Signed"] {
		e, err := all.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got[e.GetSubject()+" "+e.GetReason()] = true
	}
	if diff := cmp.Diff(map[string]bool{"peers/office Denied": true, "peers/office Forgotten": true, "contracts/k1 Signed": true}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	stream, err := a.alice(t).WatchEvents(ctx, &ententev1.WatchEventsRequest{Peer: "peers/" + strings.Repeat("z", 32)})
	if err == nil {
		_, err = stream.Recv()
	}
	if wire.ReasonOf(err) != peering.ReasonPeerUnknown {
		t.Errorf("of an ID that is not known: got %v", err)
	}
}

func TestAWatchIsALineOfJSONForEachMessage(t *testing.T) {
	a := newAdminTest(t, peerObject("office", strings.Repeat("a", 32)))
	a.restStream(t, "/v1/peers:watch", asAlice(), func(resp *http.Response) {
		if got := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || got != streamType {
			t.Errorf("got %d %s", resp.StatusCode, got)
		}
		lines := bufio.NewScanner(resp.Body)
		var got []string
		for len(got) < 2 && lines.Scan() {
			var line struct {
				Result struct {
					Peer   struct{ Name string }
					Synced bool
				}
			}
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
				t.Errorf("%q: %v", lines.Text(), err)
			}
			got = append(got, fmt.Sprint(line.Result.Peer.Name, line.Result.Synced))
		}
		if diff := cmp.Diff([]string{"peers/officefalse", "true"}, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
	for path, header := range map[string]http.Header{"/v1/peers:watch": {}, "/v1/events:watch": {"Authorization": {"Bearer " + nobodyToken}}} {
		code, body, _ := a.rest(t, "GET", path, "", header)
		if code != http.StatusUnauthorized && code != http.StatusForbidden || !strings.Contains(body, "CALLER_") {
			t.Errorf("%s: got %d %s", path, code, body)
		}
	}
}

// TestAWatchEndsWithTheRightToIt is about streams that live longer than the right
// by which they were begun.
func TestAWatchEndsWithTheRightToIt(t *testing.T) {
	quick := func(cfg *Config) {
		cfg.pace = &pace{check: 20 * time.Millisecond, grace: 2 * time.Second, write: time.Minute, body: time.Minute}
	}
	watch := func(t *testing.T, a *adminTest) (first, end func() error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		t.Cleanup(cancel)
		stream, err := a.alice(t).WatchEvents(ctx, &ententev1.WatchEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return func() error { _, err := stream.Header(); return err }, func() error { _, err := stream.Recv(); return err }
	}
	for name, tc := range map[string]struct {
		take func(*adminTest)
		want peering.Reason
	}{
		"the permission is gone":                 {func(a *adminTest) { a.denied.Store(true) }, peering.ReasonCallerNotAllowed},
		"the token was taken back":               {func(a *adminTest) { a.revoked.Store(true) }, peering.ReasonCallerUnknown},
		"the API server cannot say for too long": {func(a *adminTest) { a.away.Store(true) }, peering.ReasonKubernetes},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAdminTestWith(t, quick)
			first, end := watch(t, a)
			if err := first(); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			tc.take(a)
			if err := end(); wire.ReasonOf(err) != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
			if tc.want == peering.ReasonKubernetes && time.Since(begun) < time.Second {
				t.Error("it had no time to recover")
			}
			if !waittest.Soon(func() bool { return a.cache.watching.Load() == 0 }) {
				t.Error("watches are left behind")
			}
		})
	}
	t.Run("it goes on while it may", func(t *testing.T) {
		a := newAdminTestWith(t, quick)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := a.alice(t).WatchEvents(ctx, &ententev1.WatchEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		asked := 0
		if !waittest.Soon(func() bool {
			asked += len(a.asked())
			return asked >= 10
		}) {
			t.Errorf("asked %d times whether it may", asked)
		}
		cancel()
		if _, err := stream.Recv(); status.Code(err) != codes.Canceled {
			t.Errorf("got %v", err)
		}
	})
	t.Run("the agent stops", func(t *testing.T) {
		a := newAdminTestWith(t, quick)
		first, end := watch(t, a)
		if err := first(); err != nil {
			t.Fatal(err)
		}
		a.stop()
		if err := end(); wire.ReasonOf(err) != peering.ReasonStopping {
			t.Errorf("got %v", err)
		}
	})
}

func TestACallerHasSoManyWatches(t *testing.T) {
	a := newAdminTest(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := a.alice(t)
	open := func() error {
		stream, err := c.WatchPeers(ctx, &ententev1.WatchPeersRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	for i := range UserWatches {
		if err := open(); err != nil {
			t.Fatalf("watch %d: %v", i, err)
		}
	}
	if err := open(); wire.ReasonOf(err) != peering.ReasonTooManyCalls {
		t.Errorf("one more: got %v", err)
	}
	if _, err := c.GetInfo(t.Context(), &ententev1.GetInfoRequest{}); err != nil {
		t.Errorf("another call: %v", err)
	}
	cancel()
	ctx = t.Context()
	if !waittest.Soon(func() bool { return open() == nil }) {
		t.Error("those that ended still count")
	}
}

// TestAReaderThatDoesNotReadIsDropped fills the window of a stream that the client does not read,
// and checks that its watch ends.
func TestAReaderThatDoesNotReadIsDropped(t *testing.T) {
	a := newAdminTestWith(t, func(cfg *Config) {
		cfg.pace = &pace{check: time.Minute, grace: time.Minute, write: time.Second, body: time.Minute}
	})
	conn, err := grpc.NewClient("passthrough:///"+a.address,
		grpc.WithTransportCredentials(credentials.NewTLS(a.tls())), grpc.WithPerRPCCredentials(bearer(aliceToken)),
		grpc.WithStaticStreamWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	c := ententev1.NewAdminServiceClient(conn)
	deaf, err := c.WatchPeers(t.Context(), &ententev1.WatchPeersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := deaf.Header(); err != nil {
		t.Fatal(err)
	}
	slow, err := c.WatchEvents(t.Context(), &ententev1.WatchEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := slow.Header(); err != nil {
		t.Fatal(err)
	}
	if n := a.cache.watching.Load(); n != 7 {
		t.Fatalf("%d watches, want those of two streams", n)
	}
	for i := range 3 * WatchQueue {
		fc := peerObject(fmt.Sprintf("p%d", i), strings.Repeat("a", 32))
		fc.Labels = map[string]string{"filler": strings.Repeat("x", 60)}
		fc.Status.Conditions[0].Message = strings.Repeat("y", 500)
		if err := a.client.Create(t.Context(), fc); err != nil {
			t.Fatal(err)
		}
	}
	if !waittest.Soon(func() bool { return a.cache.watching.Load() == 0 }) {
		t.Errorf("%d watches are still there", a.cache.watching.Load())
	}
	// Who reads in time has all the time between.
	patient, err := c.WatchEvents(t.Context(), &ententev1.WatchEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := patient.Header(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond)
	if err := a.client.Create(t.Context(), peerObject("new", strings.Repeat("b", 32))); err != nil {
		t.Fatal(err)
	}
	if e, err := patient.Recv(); err != nil || e.GetReason() != "Known" {
		t.Errorf("a quiet watch: got %v, %v", e, err)
	}
}
