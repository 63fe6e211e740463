package twonodes

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/integration/e2e"
)

// series is what a scrape had, by name and labels as they are written.
type series map[string]float64

// sum adds up what has a name and all of some labels.
func (s series) sum(name string, labels ...string) (sum float64, found int) {
next:
	for key, value := range s {
		if !strings.HasPrefix(key, name+"{") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(key, l) {
				continue next
			}
		}
		sum += value
		found++
	}
	return sum, found
}

// nodesOf asks each node of a cluster for its metrics and adds them up.
func nodesOf(ctx context.Context, side *e2e.Side, clerk *e2e.Clerk) (series, error) {
	all := series{}
	for _, node := range side.Plan.Nodes {
		address := net.JoinHostPort(node.Address.String(), "7450")
		status, body, err := clerk.GetFrom(ctx, address, "entente-fabric."+e2e.SystemNamespace+".svc", "/metrics")
		if err != nil {
			return nil, err
		}
		if status != http.StatusOK {
			return nil, fmt.Errorf("node %s: %d %s", node.Name, status, body)
		}
		for line := range strings.Lines(string(body)) {
			key, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
			if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
				all[key+"}"] += v
			}
		}
	}
	return all, nil
}

// TestMetricsOfNodesRequireTheRightToReadThem: their port is in the node's own network. It scrapes
// the fabric of all nodes: the traffic of pods is counted, and so are packets that a peer's cluster
// refuses; only a caller with the right can read that.
func TestMetricsOfNodesRequireTheRightToReadThem(t *testing.T) {
	ctx, s := onStage(t)
	w := s.World
	clerks := map[*e2e.Side]*e2e.Clerk{}
	ids := map[*e2e.Side]string{}
	for _, side := range w.Sides() {
		clerk, err := side.NewClerk(ctx, "scraper", "entente-metrics")
		ok(t, err)
		t.Cleanup(func() { ok(t, clerk.Dismiss(context.WithoutCancel(ctx))) })
		clerks[side] = clerk
		ids[side], err = side.ID(ctx)
		ok(t, err)
	}

	// A caller without the right gets none, nor does one without a token.
	other, err := w.Home.NewClerk(ctx, "passer-by", "")
	ok(t, err)
	t.Cleanup(func() { ok(t, other.Dismiss(context.WithoutCancel(ctx))) })
	nobody := *other
	nobody.Token = ""
	forged := *other
	forged.Token = strings.ToUpper(other.Token)
	address := net.JoinHostPort(w.Home.Plan.Control().Address.String(), "7450")
	for clerk, want := range map[*e2e.Clerk]int{other: http.StatusForbidden, &nobody: http.StatusUnauthorized, &forged: http.StatusUnauthorized} {
		ok(t, w.Until(ctx, e2e.Restarted, "the nodes to have their certificate", func(ctx context.Context) (string, error) {
			status, body, err := clerk.GetFrom(ctx, address, "entente-fabric."+e2e.SystemNamespace+".svc", "/metrics")
			if err != nil {
				return err.Error(), nil //nolint:nilerr // it is what is missing
			}
			if status != want || strings.Contains(string(body), "entente_fabric") {
				t.Errorf("got %d %.200s, want %d", status, body, want)
			}
			return "", nil
		}))
	}

	before, err := nodesOf(ctx, w.Home, clerks[w.Home])
	ok(t, err)
	ok(t, w.Home.ReachesAll(ctx, e2e.Soon, shop, s.inn.Name, "http://"+s.out.Status.PodIP+":8080/name", []corev1.Pod{s.out}))
	for _, side := range w.Sides() {
		peer := `peer="` + ids[side.Other] + `"`
		ok(t, w.Until(ctx, e2e.Soon, "the paths of "+side.Name+" in its metrics", func(ctx context.Context) (string, error) {
			got, err := nodesOf(ctx, side, clerks[side])
			if err != nil {
				return "", err
			}
			var missing []string
			for name, labels := range map[string][]string{
				"entente_fabric_peer_packets_total": {peer, `direction="sent"`}, "entente_fabric_peer_bytes_total": {peer, `direction="received"`},
				"entente_fabric_received_bytes_total": {peer}, "entente_fabric_sent_bytes_total": {peer}, "entente_fabric_path_up": {peer, `connection_type="Direct"`},
				"entente_fabric_path_active": {peer}, "entente_fabric_path_mtu_bytes": {peer}, "entente_fabric_round_trip_seconds_count": {peer},
				"entente_fabric_probes_answered_total": {peer}, "entente_fabric_last_handshake_seconds": {peer}, "entente_fabric_packets_total": {`direction="received"`},
			} {
				if sum, found := got.sum(name, labels...); found == 0 || sum <= 0 {
					missing = append(missing, fmt.Sprintf("%s%v is %g in %d series", name, labels, sum, found))
				}
			}
			return strings.Join(missing, ", "), nil
		}))
	}
	// Bytes of WireGuard are read from its device now and then.
	ok(t, w.Until(ctx, e2e.Soon, "a request to be counted at home", func(ctx context.Context) (string, error) {
		after, err := nodesOf(ctx, w.Home, clerks[w.Home])
		if err != nil {
			return "", err
		}
		var same []string
		for _, name := range []string{"entente_fabric_peer_packets_total", "entente_fabric_peer_bytes_total", "entente_fabric_sent_bytes_total"} {
			was, _ := before.sum(name)
			if is, _ := after.sum(name); is <= was {
				same = append(same, fmt.Sprintf("%s was %g and is %g", name, was, is))
			}
		}
		return strings.Join(same, ", "), nil
	}))

	// A pod of this cluster asks for what the other one does not expose, and the latter counts it.
	agent, err := w.Abroad.AgentPod(ctx)
	ok(t, err)
	peer, err := w.Home.Peer(ctx)
	ok(t, err)
	alias, err := e2e.Alias(peer, agent.Status.PodIP)
	ok(t, err)
	refused := func() float64 {
		got, err := nodesOf(ctx, w.Abroad, clerks[w.Abroad])
		ok(t, err)
		sum, _ := got.sum("entente_fabric_dropped_packets_total", `peer="`+ids[w.Home]+`"`, `reason="not_exposed"`)
		return sum
	}
	was := refused()
	if out, err := w.Home.InPod(ctx, shop, s.inn.Name, "/tool", "curl", "-t", "2s", "http://"+net.JoinHostPort(alias, "7446")+"/healthz"); err == nil {
		t.Errorf("a pod that is not exposed answered %q", out)
	}
	if is := refused(); is <= was {
		t.Errorf("%g packets were refused, then %g", was, is)
	} else {
		t.Logf("refused abroad: %g, then %g", was, is)
	}
}
