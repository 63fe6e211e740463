package control

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// agentMemory is the agent's memory limit in the chart.
const agentMemory = 512 << 20

// TestAHostilePeerHarmsNobodyElse lets other clusters, which joined with a token, attack real
// agents in every way, as consumers and as providers, while home consumes from abroad: the agents
// stay within the chart's memory limit, home keeps its session and its node, and its pods run.
func TestAHostilePeerHarmsNobodyElse(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	offer(t, abroad, "cpu=4", "memory=8Gi", "pods=20")
	name := peered(t, home, abroad, "cpu=1", "memory=1Gi", "pods=5")
	liar := newStranger(t, abroad, 666)
	pids, session := []int{pidOf(home), pidOf(abroad)}, homesSession(t, home)
	one := peering.Resources{"cpu": peering.Whole(1)}

	t.Run("a flood of requests and of streams that it does not read", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
		defer cancel()
		var asked, refused atomic.Int64
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					_, err := client.Peering{Conn: liar.conn}.Request(ctx, peering.Ask{RequestID: fmt.Sprintf("flood-%d-%d", i, n), Resources: one})
					if asked.Add(1); err != nil {
						refused.Add(1)
					}
				}
			})
		}
		for range 300 {
			if s, err := ententev1.NewPeeringServiceClient(liar.conn).Session(ctx); err == nil {
				_ = s.Send(&ententev1.SessionRequest{State: &ententev1.PeerState{Sequence: 1}})
			}
		}
		wg.Wait()
		t.Logf("%d requests, %d of them refused", asked.Load(), refused.Load())
		if asked.Load() == refused.Load() {
			t.Error("all were refused: the attacker did not count as a peer")
		}
	})
	t.Run("a million labels", func(t *testing.T) {
		labels := map[string]string{}
		for i := range 120_000 {
			labels[fmt.Sprintf("l%d", i)] = ""
		}
		fits := &ententev1.RequestPeeringRequest{Request: &ententev1.PeeringRequest{RequestId: "labels", Resources: &ententev1.ResourceList{}, NodeSelector: labels}}
		until := func(want codes.Code) {
			t.Helper()
			ctx, cancel := context.WithTimeout(ctx, soon)
			defer cancel()
			_, err := ententev1.NewPeeringServiceClient(liar.conn).RequestPeering(ctx, fits)
			if status.Code(err) != want {
				t.Errorf("got %.300v, want %s", err, want)
			}
		}
		pause(t, liar)
		until(codes.InvalidArgument)
		for i := range 1_000_000 {
			labels[fmt.Sprintf("m%d", i)] = ""
		}
		until(codes.ResourceExhausted)
	})
	t.Run("lists that grow by being read", func(t *testing.T) {
		pause(t, liar)
		session, err := ententev1.NewPeeringServiceClient(liar.conn).Session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		// Two bytes each where they cross, and a hundred in memory.
		state := &ententev1.PeerState{Sequence: 1, Contracts: make([]*ententev1.ContractState, 1_000_000)}
		for i := range state.Contracts {
			state.Contracts[i] = &ententev1.ContractState{}
		}
		_ = session.Send(&ententev1.SessionRequest{State: state})
		for err == nil {
			_, err = session.Recv()
		}
		if code := status.Code(err); code != codes.InvalidArgument {
			t.Errorf("got %.300v", err)
		}
	})
	t.Run("another's contract and another's bundle", func(t *testing.T) {
		pause(t, liar)
		if _, err := (client.Peering{Conn: liar.conn}).Contract(ctx, name); wire.ReasonOf(err) != peering.ReasonContractUnknown {
			t.Errorf("it was shown the contract: %v", err)
		}
		var fc v1alpha1.ForeignCluster
		if err := abroad.get(ctx, homeName, &fc); err != nil {
			t.Fatal(err)
		}
		before := fc.Spec.TrustBundle
		other := newStranger(t, abroad, 667)
		_, err := ententev1.NewTrustServiceClient(liar.conn).UpdateBundle(ctx, &ententev1.UpdateBundleRequest{Cluster: &ententev1.ClusterInfo{
			Name: homeName, Bundle: other.id.TrustBundle().DER(),
		}})
		if err == nil {
			t.Error("it replaced its bundle by another's")
		}
		if err := abroad.get(ctx, homeName, &fc); err != nil || fc.Spec.TrustBundle != before {
			t.Errorf("the bundle of home changed, %v", err)
		}
	})

	t.Run("floods of applies and deletes, and of statuses and events", func(t *testing.T) { floodsHarmNobody(t, home, abroad) })

	for i, c := range []*cluster{home, abroad} {
		if now := pidOf(c); now != pids[i] || !c.running() {
			t.Errorf("the agent of %s was process %d and is %d", c.name, pids[i], now)
		}
		if peak, err := peakMemory(pids[i]); err != nil || peak > agentMemory {
			t.Errorf("the agent of %s took %d MiB, %v", c.name, peak>>20, err)
		} else {
			t.Logf("the agent of %s took %d MiB at most", c.name, peak>>20)
		}
	}
	if now := homesSession(t, home); now != session {
		t.Errorf("home's session was since %s and is since %s", session, now)
	}
	if err := nodeReady(ctx, home, nodeName); err != nil {
		t.Error(err)
	}
	if _, err := contract(ctx, home, abroad, soon); err != nil {
		t.Error(err)
	}
}

// pause waits until a peer that flooded is served again.
func pause(t *testing.T, s stranger) {
	t.Helper()
	err := eventually.Is(t.Context(), soon, "the rate to allow a call", func(ctx context.Context) error {
		_, err := client.Peering{Conn: s.conn}.Contract(ctx, "c-none")
		if reason := wire.ReasonOf(err); reason != peering.ReasonContractUnknown {
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// homesSession returns since when home has its session.
func homesSession(t *testing.T, home *cluster) string {
	t.Helper()
	s, err := sessionOf(t.Context(), home, abroadName)
	if err != nil {
		t.Fatal(err)
	}
	return s.Since.String()
}

func pidOf(c *cluster) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil {
		return 0
	}
	return c.cmd.Process.Pid
}

// peakMemory is the most memory that a process ever had resident, in bytes.
func peakMemory(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no VmHWM", pid)
}
