package fabric

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/tunnel/plan"
)

// A fabric that starts while its API server is away uses its saved plan. Once that answers its objects
// count: tunnels that were removed meanwhile end, and are no longer saved.
func TestSavedStateCountsUntilTheAPIServerAnswers(t *testing.T) {
	t.Parallel()
	own := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"}}
	own.Spec.PodCIDRs = []string{"10.200.0.0/24"}
	at, group := metav1.ListMeta{ResourceVersion: "1"}, v1alpha1.GroupVersion.String()
	for name, tt := range map[string]struct {
		tunnels []v1alpha1.Tunnel
		want    int
		kept    []string
	}{
		"the tunnel exists, and the Secret of its key is gone": {[]v1alpha1.Tunnel{tunnelTo("p", 0)}, 1, []string{"key", "plan"}},
		"the tunnel is gone": {nil, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range tt.tunnels {
				tt.tunnels[i].ResourceVersion = "1"
			}
			objects := &fewObjects{t: t, requests: map[string]int{}, lists: map[string]runtime.Object{
				"nodes":       &corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: at, Items: []corev1.Node{own}},
				"secrets":     &corev1.SecretList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "SecretList"}, ListMeta: at},
				"tunnels":     &v1alpha1.TunnelList{TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "TunnelList"}, ListMeta: at, Items: tt.tunnels},
				"fabricnodes": &v1alpha1.FabricNodeList{TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "FabricNodeList"}, ListMeta: at, Items: []v1alpha1.FabricNode{fabricNode("a", "me", keyA, true)}},
			}}
			var away atomic.Bool
			away.Store(true)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if away.Load() {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				objects.ServeHTTP(w, req)
			}))
			defer server.Close()
			directory := filepath.Join(t.TempDir(), "state")
			before := stateIn(t, "a", directory, ownClaims, slog.New(slog.DiscardHandler))
			_ = before.Save(make([]byte, 32))
			before.keep(savedFor(time.Now()))

			cfg := Config{Node: "a", Namespace: "entente-system", HealthAddress: "0", Log: slog.New(slog.DiscardHandler)}
			mgr, err := ctrl.NewManager(&rest.Config{Host: server.URL, QPS: -1}, nodeOptions(cfg))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var done sync.WaitGroup
			defer done.Wait()
			defer cancel()
			fabric := &sets{}
			n := &node{cfg: cfg, fabric: fabric, inBand: idleRelays(t), client: mgr.GetClient(), state: stateIn(t, "a", directory, ownClaims, cfg.Log)}
			n.state.Load()
			done.Go(func() { _ = mgr.Start(ctx) })
			done.Go(func() { _ = n.follow(ctx, mgr.GetCache()) })
			done.Go(func() { _ = n.state.run(ctx) })
			until := func(what string, is func(d plan.Desired, n int) bool) {
				t.Helper()
				if !waittest.Soon(func() bool { return is(fabric.seen()) }) {
					d, times := fabric.seen()
					t.Fatalf("%s: set %d times, last %+v", what, times, d)
				}
			}
			one := func(d plan.Desired, times int) bool {
				return times > 0 && len(d.Peers) == 1 && !d.Peers[0].KeyMissing
			}
			until("what was kept is applied", one)
			if n.synced.Load() {
				t.Error("it says that it has read the API server")
			}
			away.Store(false)
			until("the API server's word counts", func(d plan.Desired, times int) bool {
				return n.synced.Load() && len(d.Peers) == tt.want && (tt.want == 0 || one(d, times))
			})
			var files []os.DirEntry
			if !waittest.Soon(func() bool {
				var err error
				if files, err = os.ReadDir(directory); err != nil {
					t.Fatal(err)
				}
				return len(files) == len(tt.kept)
			}) {
				t.Fatalf("kept are %v, want %v", files, tt.kept)
			}
		})
	}
}
