package twonodes

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/integration/e2e"
)

// TestMetricsOfNodesAreReadByWhoMay: they tell of all peers, and their port is in the node's own
// network.
func TestMetricsOfNodesAreReadByWhoMay(t *testing.T) {
	ctx, s := onStage(t)
	home := s.World.Home
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		_, err := home.Kubectl(ctx, "delete", "clusterrolebinding", "scraper", "--ignore-not-found")
		ok(t, err)
		_, err = home.Kubectl(ctx, "delete", "serviceaccount", "scraper", "nobody", "--ignore-not-found")
		ok(t, err)
	})
	tokens := map[string]string{}
	for _, name := range []string{"scraper", "nobody"} {
		_, err := home.Kubectl(ctx, "create", "serviceaccount", name)
		ok(t, err)
		token, err := home.Kubectl(ctx, "create", "token", name)
		ok(t, err)
		tokens[name] = strings.TrimSpace(token)
	}
	_, err := home.Kubectl(ctx, "create", "clusterrolebinding", "scraper", "--clusterrole=entente-metrics", "--serviceaccount=default:scraper")
	ok(t, err)
	for token, want := range map[string]int{"": http.StatusUnauthorized, "forged": http.StatusUnauthorized, tokens["nobody"]: http.StatusForbidden} {
		got, text, err := nodeMetrics(ctx, home, token)
		ok(t, err)
		if got != want || strings.Contains(text, "entente_fabric_") {
			t.Errorf("got %d, want %d, and no metrics:\n%s", got, want, text)
		}
	}
	peer, err := s.World.Abroad.ID(ctx)
	ok(t, err)
	ok(t, home.ReachesAll(ctx, e2e.Soon, shop, s.inn.Name, "http://"+s.out.Status.PodIP+":8080/name", []corev1.Pod{s.out}))
	ok(t, s.World.Until(ctx, e2e.Soon, "the node's metrics to tell of its way to the peer", func(ctx context.Context) (string, error) {
		code, text, err := nodeMetrics(ctx, home, tokens["scraper"])
		if err != nil || code != http.StatusOK {
			return fmt.Sprintf("%d %s", code, text), err
		}
		for _, metric := range []string{
			"entente_fabric_path_up", "entente_fabric_received_bytes_total", "entente_fabric_sent_bytes_total", "entente_fabric_probes_answered_total",
			"entente_fabric_round_trip_seconds_count", "entente_fabric_path_mtu_bytes", "entente_fabric_last_handshake_seconds",
		} {
			if most(text, metric, peer) <= 0 {
				return metric + " of the peer is not above zero", nil
			}
		}
		return "", nil
	}))
}

// most is the highest value of a metric of a peer; -1 if there is none.
func most(text, metric, peer string) float64 {
	out := -1.0
	for _, m := range regexp.MustCompile("(?m)^"+metric+`\{[^}]*peer="`+peer+`"[^}]*\} (\S+)$`).FindAllStringSubmatch(text, -1) {
		if v, err := strconv.ParseFloat(m[1], 64); err == nil {
			out = max(out, v)
		}
	}
	return out
}

// nodeMetrics reads the metrics of a side's first node.
func nodeMetrics(ctx context.Context, side *e2e.Side, token string) (status int, text string, err error) {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return side.DialOnNode(ctx, network, address)
		},
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://%s:7450/metrics", side.Plan.Control().Address), http.NoBody)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}
