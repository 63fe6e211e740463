package agent

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/entente-dev/entente/internal/charttest"
)

// Everything that an agent has, with every option, is built and runs with the rights that
// the chart gives it, until it is stopped.
func TestTheAgentRunsAllItsComponentsOnARealAPIServer(t *testing.T) {
	server := charttest.StartAPIServer(t)
	as := server.As("entente-agent")
	free, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	health := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{
			Kubernetes: as, Namespace: "entente-system", Pod: "agent-1", PodUID: "u1", PodIP: netip.MustParseAddr("127.0.0.1"), LeafLife: time.Hour,
			AliasPool:    []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")},
			DiscoveryLAN: true, DiscoveryDomains: []string{"entente.test", "bad domain!"}, DiscoveryResolvers: []string{"127.0.0.1:1", "foo"},
			PeerAddress: "127.0.0.1:0", AdminAddress: "127.0.0.1:0", KubeletAddress: "127.0.0.1:0", MetricsAddress: "127.0.0.1:0", HealthAddress: health,
			KubeletCertificate: ClusterCertificate, Log: slog.New(slog.DiscardHandler),
		})
	}()
	for ready := false; !ready; {
		select {
		case err := <-ended:
			t.Fatalf("the agent ended: %v", err)
		case <-t.Context().Done():
			t.Fatal("the agent is not ready")
		case <-time.After(100 * time.Millisecond):
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+health+"/readyz", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			ready = response.StatusCode == http.StatusOK
			_ = response.Body.Close()
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}
