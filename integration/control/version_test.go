package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/only"
	"github.com/entente-dev/entente/peering"
)

// TestAnAgentPeersWithALaterOne: all that a peering is, from joining to the end,
// with a peer that says a later revision and in each message fields, values and
// kinds of messages that today's agent does not know; once it provides, once it
// consumes.
func TestAnAgentPeersWithALaterOne(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"provider", "consumer"} {
		t.Run(role, func(t *testing.T) {
			home, abroad := agents(t)
			say := &laterAgent{protocol: peering.Protocol + 1}
			b := newBetween(t, home, abroad, oddOne(home.pair, role), say)
			aPeering(t, b, peering.Protocol+1)
			say.mu.Lock()
			defer say.mu.Unlock()
			t.Logf("messages of the later agent: %v", say.counts)
			if say.heard != peering.Protocol {
				t.Errorf("today's agent says revision %d", say.heard)
			}
			if role != "consumer" {
				return
			}
			if len(say.answered) == 0 {
				t.Error("the object of a later kind was not answered")
			}
			for _, ack := range say.answered {
				if ack.GetReason() != string(peering.RefusedInvalid) || !strings.Contains(ack.GetMessage(), "upgrade") {
					t.Errorf("the object of a later kind was answered %s: %s", ack.GetReason(), ack.GetMessage())
				}
			}
		})
	}
}

// TestAnAgentPeersWithAnEarlierOne: the same with a peer that lacks the methods
// and fields that came last, and knows of no revisions.
func TestAnAgentPeersWithAnEarlierOne(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"provider", "consumer"} {
		t.Run(role, func(t *testing.T) {
			home, abroad := agents(t)
			say := &earlierAgent{}
			aPeering(t, newBetween(t, home, abroad, oddOne(home.pair, role), say), 0)
			say.mu.Lock()
			defer say.mu.Unlock()
			t.Logf("calls of what the earlier agent does not have: %v", say.lacked)
			for method, n := range say.lacked {
				if n > 60 {
					t.Errorf("%s was called %d times, in vain", method, n)
				}
			}
		})
	}
}

// oddOne is the cluster whose agent is of another revision: home consumes, abroad
// provides.
func oddOne(p *pair, role string) *cluster {
	if role == "consumer" {
		return p.home
	}
	return p.abroad
}

// aPeering goes through everything that two agents do with each other, and checks
// that it is as if both were of the same revision. protocol is what the odd one
// says; 0 says none.
func aPeering(t *testing.T, b *between, protocol uint32) {
	t.Helper()
	ctx, home, abroad := t.Context(), b.home.to, b.abroad.to
	pids := map[*cluster]int{home: pidOf(home), abroad: pidOf(abroad)}
	begin := map[*cluster]int64{}
	for c := range pids {
		var err error
		if begin[c], err = c.logEnd(); err != nil {
			t.Fatal(err)
		}
	}
	admins := newFiveWays(t, home, abroad)
	offerBy(t, abroad, func(p *v1alpha1.PeeringPolicySpec) {
		p.ContractDuration, p.Price, p.StatementPeriod = lasting(short), costs("3.6"), lasting(time.Minute)
	}, "cpu=8", "memory=16Gi", "pods=40")
	if err := b.join(ctx); err != nil {
		t.Fatal(err)
	}
	if err := home.pair.both(func(c *cluster) error { return connected(ctx, c, later) }); err != nil {
		t.Fatal(err)
	}
	today := home
	if b.odd == home {
		today = abroad
	}
	protocolsAre(t, today, protocol)
	says := fmt.Sprintf("it speaks revision %d, this cluster %d", protocol, peering.Protocol)
	if protocol == 0 {
		says = fmt.Sprintf("it did not send its revision; this cluster speaks %d", peering.Protocol)
	}
	if out, err := admins.cli(ctx, today, "", "info", "peer", peerOf(today)); err != nil || !strings.Contains(out, says) {
		t.Errorf("`entente info peer` does not say that %s: %s, %v", says, out, err)
	}

	request := ask("cpu=2", "memory=4Gi", "pods=10")
	request.Spec.Duration = lasting(short) // less than is taken unless it is asked for
	if err := home.client.Create(ctx, request); err != nil {
		t.Fatal(err)
	}
	name, err := contract(ctx, home, abroad, later)
	if err != nil {
		t.Fatal(err)
	}
	p := newLastingPod(t, home, abroad)

	edit(t, home, requestName, func(s *v1alpha1.PeeringRequest) { s.Spec.Resources = amounts("cpu=3", "memory=4Gi", "pods=10") })
	amended, err := agreeOn(ctx, home, abroad, name, 2, "3", later)
	if err != nil {
		t.Fatal(err)
	}
	renewed, err := agreeOn(ctx, home, abroad, name, amended.Spec.Revision+1, "3", 2*later)
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := peering.ParseEnvelope([]byte(renewed.Spec.Envelope))
	if err != nil {
		t.Fatal(err)
	}
	if terms, err := envelope.Verify(); err != nil || terms.ContractID != name {
		t.Errorf("the contract that both hold is of %s, %v", terms.ContractID, err)
	}
	if protocol > 0 {
		stated(t, home, abroad, name)
	}
	p.lasts(t)
	for _, c := range []*cluster{home, abroad} {
		var held v1alpha1.Contract
		if err := errors.Join(c.get(ctx, name, &held), connected(ctx, c, soon)); err != nil || held.Status.Phase != peering.PhaseActive.String() {
			t.Errorf("%s holds the contract as %q: %v", c.name, held.Status.Phase, err)
		}
	}
	// One gives its consent back: the other ends it too.
	if err := home.client.Delete(ctx, p.Pod); err != nil {
		t.Fatal(err)
	}
	if err := gone(ctx, home, p.Pod, soon); err != nil {
		t.Error(err)
	}
	remove(t, home, ask())
	for _, c := range []*cluster{home, abroad} {
		err := eventually.Is(ctx, later, "the contract to end at "+c.name, func(ctx context.Context) error { return noneOpen(ctx, c) })
		if err != nil {
			t.Error(err)
		}
	}
	if err := part(ctx, home, abroad, later); err != nil {
		t.Error(err)
	}
	for c, pid := range pids {
		if now := pidOf(c); now != pid || !c.running() {
			t.Errorf("the agent of %s was process %d and is %d", c.name, pid, now)
		}
		text, err := c.since(begin[c])
		if err != nil || strings.Contains(text, "panic") {
			t.Errorf("%s panicked, %v", c.name, err)
		}
		if n := strings.Count(text, "REQUEST_INVALID") + strings.Count(text, "RESPONSE_INVALID"); n > 0 {
			t.Errorf("the log of %s reports %d times messages that break the protocol", c.name, n)
		}
	}
}

// noneOpen checks that a cluster has no contract that is in force.
func noneOpen(ctx context.Context, c *cluster) error {
	held, err := list[v1alpha1.ContractList](ctx, c)
	if err != nil {
		return err
	}
	for i := range held.Items {
		if held.Items[i].Status.Phase != peering.PhaseClosed.String() {
			return fmt.Errorf("%s has %s", c.name, describe(&held.Items[i]))
		}
	}
	return nil
}

// stated waits until a statement of use crossed, and both counts agree on it.
func stated(t *testing.T, home, abroad *cluster, name string) {
	t.Helper()
	provider, err := partyOf(t.Context(), abroad)
	if err != nil {
		t.Fatal(err)
	}
	err = eventually.Is(t.Context(), 2*time.Minute, "a statement of use", func(ctx context.Context) error {
		var c v1alpha1.Contract
		if err := home.get(ctx, name, &c); err != nil {
			return eventually.Permanent(err)
		}
		all, err := statementsOf(&c, provider)
		if err != nil {
			return eventually.Permanent(err)
		}
		if len(all) == 0 {
			return errors.New("there is none")
		}
		return errors.Join(conditionTrue(c.Status.Conditions, "StatementsValid"), conditionTrue(c.Status.Conditions, "UsageAgrees"))
	})
	if err != nil {
		t.Error(err)
	}
}

// protocolsAre checks that a cluster reports both revisions.
func protocolsAre(t *testing.T, c *cluster, protocol uint32) {
	t.Helper()
	ctx := t.Context()
	info, err := call(ctx, c, func(ctx context.Context, a ententev1.AdminServiceClient) (*ententev1.GetInfoResponse, error) {
		return a.GetInfo(ctx, &ententev1.GetInfoRequest{})
	})
	if err != nil || info.GetProtocol() != peering.Protocol {
		t.Errorf("%s says that it speaks revision %d, %v", c.name, info.GetProtocol(), err)
	}
	err = eventually.Is(ctx, soon, "the peer's revision to be known", func(ctx context.Context) error {
		peer, err := call(ctx, c, func(ctx context.Context, a ententev1.AdminServiceClient) (*ententev1.GetPeerResponse, error) {
			return a.GetPeer(ctx, &ententev1.GetPeerRequest{Name: "peers/" + peerOf(c)})
		})
		if err == nil && peer.GetPeer().GetProtocol() != protocol {
			err = fmt.Errorf("it is %d", peer.GetPeer().GetProtocol())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestValuesOfALaterRevisionAreRefusedWithAReason: where today's agent would have to understand a
// peer of a later revision, it says so, and what to upgrade; once the peer sends values that both
// know, everything continues.
func TestValuesOfALaterRevisionAreRefusedWithAReason(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	say := &laterAgent{protocol: peering.Protocol + peering.MaxProtocolSkew, exposure: "Everything"}
	b := newBetween(t, home, abroad, abroad, say)
	policy := offer(t, abroad, "cpu=4", "memory=8Gi", "pods=20")
	if err := b.join(ctx); err != nil {
		t.Fatal(err)
	}
	if err := home.client.Create(ctx, ask("cpu=2", "memory=4Gi", "pods=10")); err != nil {
		t.Fatal(err)
	}
	if err := acceptedIs(ctx, home, requestName, metav1.ConditionFalse, "upgrade that agent", later); err != nil {
		t.Error(err)
	}
	// People can still read an unknown reason.
	say.set("NOT_UNDER_THIS_MOON", "")
	restore := setDefaultPolicy(t, abroad, v1alpha1.AcceptNever)
	t.Cleanup(restore)
	remove(t, abroad, policy)
	edit(t, home, requestName, func(s *v1alpha1.PeeringRequest) { s.Spec.Resources = amounts("cpu=3", "memory=4Gi", "pods=10") })
	if err := acceptedIs(ctx, home, requestName, metav1.ConditionFalse, "NotUnderThisMoon", 2*later); err != nil {
		t.Error(err)
	}
	restore()
	if _, err := contract(ctx, home, abroad, 2*later); err != nil {
		t.Error(err)
	}
	if err := part(ctx, home, abroad, later); err != nil {
		t.Error(err)
	}
}

// TestAgentsTooFarApartReportIt: two whole agents, one of them built to speak a revision that is
// too far ahead. Neither uses the other, and both say which one to upgrade; after that everything
// works.
func TestAgentsTooFarApartReportIt(t *testing.T) {
	only.Matrix(t, "a minute, mostly building; internal/wire says which revisions work together, and TestValuesOfALaterRevisionAreRefusedWithAReason has agents differ")
	home, abroad := agents(t)
	ctx := t.Context()
	today := abroad.binary
	run := func(c *cluster, binary string) {
		t.Helper()
		c.kill()
		c.binary = binary
		if err := c.start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		abroad.kill()
		abroad.binary = today
	})
	run(abroad, agentOf(t, peering.Protocol+peering.MaxProtocolSkew+1))
	offer(t, abroad, "cpu=4", "memory=8Gi", "pods=20")
	token, err := createToken(ctx, abroad)
	if err != nil {
		t.Fatal(err)
	}
	if err := redeem(ctx, home, token); err != nil {
		t.Fatal(err)
	}
	if err := home.client.Create(ctx, ask("cpu=2", "memory=4Gi", "pods=10")); err != nil {
		t.Fatal(err)
	}
	says := func(c *cluster, which string) error {
		return eventually.Is(ctx, later, c.name+" to say that the revisions are too far apart", func(ctx context.Context) error {
			var fc v1alpha1.ForeignCluster
			if err := c.get(ctx, peerOf(c), &fc); err != nil {
				return err
			}
			i := slices.IndexFunc(fc.Status.Conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionConnected })
			if i < 0 {
				return errors.New("it says nothing")
			}
			said := fc.Status.Conditions[i]
			want := fmt.Sprintf("upgrade the agent that speaks revision %d, which is %s", peering.Protocol, which)
			if said.Status != metav1.ConditionFalse || said.Reason != "ProtocolUnsupported" || !strings.Contains(said.Message, want) {
				return fmt.Errorf("Connected is %s: %s: %s", said.Status, said.Reason, said.Message)
			}
			return nil
		})
	}
	check := func() {
		t.Helper()
		if err := errors.Join(says(home, "this cluster's"), says(abroad, "the peer's")); err != nil {
			t.Fatal(err)
		}
	}
	check()
	// It stays so, and nothing is agreed.
	for range 20 {
		check()
		time.Sleep(500 * time.Millisecond)
	}
	if err := noneOpen(ctx, abroad); err != nil {
		t.Error(err)
	}
	run(abroad, today)
	if _, err := contract(ctx, home, abroad, 2*later); err != nil {
		t.Error(err)
	}
	if err := home.pair.both(func(c *cluster) error { return connected(ctx, c, soon) }); err != nil {
		t.Error(err)
	}
}

// agentOf builds today's agent as one that speaks another revision.
func agentOf(t *testing.T, protocol uint32) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(root, "peering", "protocol.go")
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^\tProtocol +=.*$`)
	if len(line.FindAll(text, -1)) != 1 {
		t.Fatalf("%s does not say the revision on a line", source)
	}
	dir := t.TempDir()
	other, overlay := filepath.Join(dir, "protocol.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {source: other}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		os.WriteFile(other, line.ReplaceAll(text, fmt.Appendf(nil, "\tProtocol = %d", protocol)), 0o600),
		os.WriteFile(overlay, replace, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "entented")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-overlay", overlay, "-o", binary, "./cmd/entented")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build an agent of revision %d: %v\n%s", protocol, err, out)
	}
	return binary
}
