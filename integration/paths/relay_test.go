package paths

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// TestAThirdPeerRelaysPods puts rome and milan behind translations that choose ports, so that neither
// agent and neither gateway reaches the other. Oslo, a peer of both, carries what passes between them as long
// as it allows that to both, encrypted; else nothing passes, and the status says why.
func TestAThirdPeerRelaysPods(t *testing.T) {
	only.Matrix(t, "five minutes; package control has agents without nodes go through a third cluster, and twonodes pods go through the agents of two")
	ctx, w := onStage(t)
	e2e.OK(t, w.uses(ctx, w.rome, w.milan))
	e2e.OK(t, w.joined(ctx, w.rome, w.oslo))
	e2e.OK(t, w.joined(ctx, w.milan, w.oslo))
	e2e.Offloaded(ctx, t, w.World, shop)
	pods := w.bothEnds(ctx, t)
	e2e.OK(t, w.hasWay(ctx, "Direct"))
	e2e.OK(t, w.connect(ctx, pods))
	lives := w.livesOf(ctx, t)
	w.sealed(ctx, t)

	const none = "no connected peer carries sessions (set network.relay.forPeers there)"
	t.Run("oslo does not allow it", func(t *testing.T) {
		w.cutOff(ctx, t, pods, map[*e2e.Side]string{w.rome: none, w.milan: none})
	})
	t.Cleanup(func() { e2e.OK(t, w.allows(context.WithoutCancel(ctx), "None")) })
	t.Run("it allows it to one of them", func(t *testing.T) {
		e2e.OK(t, w.allows(ctx, "Contracts"))
		_, err := w.oslo.Entente(ctx, "peer", "rome")
		e2e.OK(t, err)
		w.cutOff(ctx, t, pods, map[*e2e.Side]string{w.rome: "carries no connection between yours and that one now", w.milan: none})
	})
	t.Run("it allows it to both", func(t *testing.T) {
		_, err := w.oslo.Entente(ctx, "peer", "milan")
		e2e.OK(t, err)
		w.relayed(ctx, t, pods)
		w.sealedFromOslo(ctx, t, pods)
	})
	t.Run("one of them may no longer", func(t *testing.T) {
		_, err := w.oslo.Entente(ctx, "unpeer", "rome", "--now", "--yes")
		e2e.OK(t, err)
		w.cutOff(ctx, t, pods, map[*e2e.Side]string{w.rome: none, w.milan: "carries no connection between yours and that one now"})
	})
	t.Run("all peers may", func(t *testing.T) {
		e2e.OK(t, w.allows(ctx, "Peers"))
		w.relayed(ctx, t, pods)
	})
	t.Run("none may any more", func(t *testing.T) {
		e2e.OK(t, w.allows(ctx, "None"))
		w.cutOff(ctx, t, pods, map[*e2e.Side]string{w.rome: none, w.milan: none})
	})
	t.Run("nothing is in the way any more", func(t *testing.T) {
		e2e.OK(t, w.open(ctx))
		e2e.OK(t, w.carriedBy(ctx, ""))
		e2e.OK(t, w.hasWay(ctx, "Direct"))
		e2e.OK(t, w.connect(ctx, pods))
		if err := lives.Same(w.livesOf(ctx, t)); err != nil {
			t.Errorf("pods did not outlive it: %v", err)
		}
	})
}

// livesOf returns the lives of the namespace's pods.
func (w *world) livesOf(ctx context.Context, t *testing.T) e2e.Lives {
	t.Helper()
	pods, err := w.rome.Pods(ctx, shop, nil)
	e2e.OK(t, err)
	return e2e.LivesOf(pods)
}

// sealed has rome and milan dial out only, over IPv4 only, from ports that the translations choose.
func (w *world) sealed(ctx context.Context, t *testing.T) {
	t.Helper()
	t.Cleanup(func() { e2e.OK(t, w.open(context.WithoutCancel(ctx))) })
	rome, milan := w.rome.Plan.LANName, w.milan.Plan.LANName
	_, err := w.OnInternet(ctx, "nft", fmt.Sprintf(`table inet paths {
	counter direct { }
	chain six { type filter hook forward priority -20; meta nfproto ipv6 drop; }
	chain count {
		type filter hook forward priority 20;
		iifname %[1]q oifname %[2]q counter name direct
		iifname %[2]q oifname %[1]q counter name direct
	}
}`, rome, milan))
	e2e.OK(t, err)
	for _, side := range []*e2e.Side{w.rome, w.milan} {
		e2e.OK(t, w.NAT(ctx, side))
	}
	_, err = w.OnInternet(ctx, "nft", "reset", "counter", "inet", "paths", "direct") // from here on
	e2e.OK(t, err)
}

// open ends what sealed began; where there is nothing to end it does nothing.
func (w *world) open(ctx context.Context) error {
	_, err := w.OnInternet(ctx, "nft", "table inet paths\ndelete table inet paths")
	return errors.Join(err, w.Heal(ctx))
}

// allows has oslo carry sessions between such peers.
func (w *world) allows(ctx context.Context, peers string) error {
	if _, err := w.oslo.Helm(ctx, append(w.InstallArgs(w.oslo), "--set", "network.relay.forPeers="+peers)...); err != nil {
		return err
	}
	return w.oslo.AgentReady(ctx, e2e.Restarted)
}

// carriedBy waits until both say that their session goes through a peer, directly where that is empty.
func (w *world) carriedBy(ctx context.Context, third string) error {
	return w.known(ctx, e2e.Restarted, w.rome, w.milan, "connected through "+third, func(fc *v1alpha1.ForeignCluster) error {
		if s := fc.Status.Session; s == nil || s.Through != third {
			return fmt.Errorf("the session is %+v", s)
		}
		if third != "" {
			return is(fc, v1alpha1.ConditionConnected, metav1.ConditionTrue, "through peer "+third)
		}
		return is(fc, v1alpha1.ConditionConnected, metav1.ConditionTrue)
	})
}

// path is what a side's network status says of the way to the other one's gateway: its words.
func path(ctx context.Context, side *e2e.Side) (string, error) {
	text, err := side.Entente(ctx, "network", "status", side.Other.Name)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) > 5 && f[0] == side.Other.Name && f[1] == side.Node() && f[2] == side.Other.Node() {
			return strings.Join(f, " "), nil
		}
	}
	return "", fmt.Errorf("%s has no path to %s:\n%s", side.Name, side.Other.Name, text)
}

// hasWay waits until both say that packets go a way, and pass.
func (w *world) hasWay(ctx context.Context, way string) error {
	for _, side := range []*e2e.Side{w.rome, w.milan} {
		if err := w.Until(ctx, e2e.Restarted, fmt.Sprintf("the way from %s to be %q", side.Name, way), func(ctx context.Context) (string, error) {
			line, err := path(ctx, side)
			if err == nil && (!strings.Contains(line, " "+way+" ") || !strings.Contains(line, " Up ")) {
				return line, nil
			}
			return "", err
		}); err != nil {
			return err
		}
	}
	return nil
}

// cutOff waits until both say that nothing passes between them, and why, and checks that nothing does.
func (w *world) cutOff(ctx context.Context, t *testing.T, p between, why map[*e2e.Side]string) {
	t.Helper()
	begin := time.Now()
	e2e.OK(t, w.known(ctx, e2e.Restarted, w.rome, w.milan, "not connected", func(fc *v1alpha1.ForeignCluster) error {
		if s := fc.Status.Session; s != nil {
			return fmt.Errorf("the session is %+v", s)
		}
		side := w.rome
		if fc.Name == w.rome.Name {
			side = w.milan
		}
		return is(fc, v1alpha1.ConditionConnected, metav1.ConditionFalse, why[side])
	}))
	t.Logf("both say after %s that they are not connected, and why", time.Since(begin).Round(100*time.Millisecond))
	for _, side := range []*e2e.Side{w.rome, w.milan} {
		e2e.OK(t, w.Until(ctx, e2e.Restarted, side.Name+" to say that the path is down", func(ctx context.Context) (string, error) {
			line, err := path(ctx, side)
			if err == nil && !strings.Contains(line, " Down ") {
				return line, nil
			}
			t.Log(line)
			return "", err
		}))
		text, err := side.Entente(ctx, "info", "peer", side.Other.Name)
		e2e.OK(t, err)
		if !strings.Contains(text, why[side]) {
			t.Errorf("`entente info peer` in %s does not say %q:\n%s", side.Name, why[side], text)
		}
	}
	e2e.OK(t, w.known(ctx, e2e.Restarted, w.rome, w.milan, "not reached", func(fc *v1alpha1.ForeignCluster) error {
		return is(fc, v1alpha1.ConditionNetwork, metav1.ConditionFalse)
	}))
	if answer, err := w.rome.InPod(ctx, shop, p.inn.Name, "/tool", "curl", "-t", "5s", "http://"+p.out.Status.PodIP+":8080/name"); err == nil {
		t.Errorf("the pod abroad answers: %q", answer)
	}
}

// relayed waits until both report that packets go through oslo, and checks that everything works,
// with no packets from one to the other.
func (w *world) relayed(ctx context.Context, t *testing.T, p between) {
	t.Helper()
	begin := time.Now()
	e2e.OK(t, w.carriedBy(ctx, w.oslo.Name))
	t.Logf("both are connected through oslo after %s", time.Since(begin).Round(100*time.Millisecond))
	e2e.OK(t, w.hasWay(ctx, "Relayed through "+w.oslo.Name))
	t.Logf("packets pass after %s", time.Since(begin).Round(100*time.Millisecond))
	for _, side := range []*e2e.Side{w.rome, w.milan} {
		text, err := side.Entente(ctx, "info", "peer", side.Other.Name)
		e2e.OK(t, err)
		if want := "through peer " + w.oslo.Name + ", which sees only encrypted traffic"; !strings.Contains(text, want) {
			t.Errorf("`entente info peer` in %s does not say %q:\n%s", side.Name, want, text)
		}
	}
	e2e.OK(t, w.known(ctx, e2e.Restarted, w.rome, w.milan, "reached", func(fc *v1alpha1.ForeignCluster) error {
		return is(fc, v1alpha1.ConditionNetwork, metav1.ConditionTrue)
	}))
	e2e.OK(t, w.connect(ctx, p))
	text, err := w.OnInternet(ctx, "nft", "list", "counter", "inet", "paths", "direct")
	e2e.OK(t, err)
	if !strings.Contains(text, "packets 0 ") {
		t.Errorf("packets pass between rome and milan by themselves:\n%s", text)
	}
}

// sealedFromOslo has a word go between the two, by packets of pods and by the session, and checks that it is
// neither in what oslo receives and sends nor in the memory of its agent, as it is in rome's.
func (w *world) sealedFromOslo(ctx context.Context, t *testing.T, p between) {
	t.Helper()
	word := "saltimbocca-" + rand.Text()
	file := filepath.Join(t.TempDir(), "oslo.pcap")
	filter := fmt.Sprintf("host %s or host %s", w.rome.Plan.Public, w.milan.Plan.Public)
	agents := map[*e2e.Side]int{}
	for _, side := range []*e2e.Side{w.rome, w.oslo} {
		pid, err := side.Process(ctx, e2e.PartAgent)
		e2e.OK(t, err)
		agents[side] = pid
	}
	e2e.OK(t, w.RecordOn(ctx, w.oslo.Plan.LANName, filter, file, func(ctx context.Context) error {
		if err := w.connect(ctx, p); err != nil {
			return err
		}
		for range 20 {
			for from, to := range map[string]string{p.inn.Name: "out", p.out.Name: "inn"} {
				if _, err := w.rome.InPod(ctx, shop, from, "/tool", "curl", "http://"+to+":8080/"+word); err != nil {
					return err
				}
			}
		}
		seen := 0
		for range 40 {
			log, err := w.rome.Kubectl(ctx, "logs", "-n", shop, p.out.Name)
			if err != nil {
				return err
			}
			if !strings.Contains(log, word) {
				return errors.New("the word is not in the log of the pod abroad")
			}
			for side, pid := range agents {
				found, err := e2e.Remembers(pid, word)
				switch {
				case err != nil:
					return err
				case found && side == w.oslo:
					return errors.New("the word is in the memory of oslo's agent")
				case found:
					seen++
				}
			}
		}
		t.Logf("of 40 times the word was in the memory of rome's agent %d times, and never in that of oslo's", seen)
		if seen == 0 {
			return errors.New("the word was not in the memory of rome's agent, so this tests nothing")
		}
		return nil
	}))
	traffic, err := e2e.ReadTraffic(file, word)
	e2e.OK(t, err)
	t.Logf("oslo, from and to both: %s", traffic)
	// Each byte comes to oslo and leaves it; a recording on a busy machine may lack packets.
	if traffic.Others > 0 || traffic.Records == 0 || traffic.Bytes < 2*fetched {
		t.Errorf("oslo's traffic with both is %s; want %d bytes of TLS and WireGuard alone", traffic, 2*fetched)
	}
}
