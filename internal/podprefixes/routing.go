package podprefixes

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// ciliumName is the name of Cilium's ConfigMap in kube-system.
const ciliumName = "cilium-config"

// Routing reads how Cilium forwards packets of pods, from its ConfigMap.
type Routing struct {
	// Direct reads the ConfigMap. Required.
	Direct client.Reader
	Now    func() time.Time
	Log    *slog.Logger

	mu       sync.Mutex
	asked    time.Time
	kind, by string
}

// Get returns [v1alpha1.HostRoutingBPF] or [v1alpha1.HostRoutingLegacy], and the settings that say so. Both are empty
// without Cilium, if its ConfigMap may not be read, or if that does not decide it.
func (r *Routing) Get(ctx context.Context) (kind, by string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Now()
	if !r.asked.IsZero() && now.Sub(r.asked) < routingEvery {
		return r.kind, r.by
	}
	r.asked = now
	ctx, cancel := context.WithTimeout(ctx, routingTimeout)
	defer cancel()
	var m corev1.ConfigMap
	err := r.Direct.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: ciliumName}, &m)
	switch {
	case err == nil:
		r.kind, r.by = hostRouting(m.Data)
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		r.kind, r.by = "", ""
	default:
		r.Log.Debug("cannot read how Cilium routes; what was last read counts", "err", err)
	}
	return r.kind, r.by
}

// hostRouting decides by the settings of cilium-config, as Cilium does when it starts: it routes by eBPF if it replaces
// kube-proxy and has iptables do nothing for it. A setting that is not there, or has another value than those of the
// versions of this decade, decides nothing.
func hostRouting(data map[string]string) (kind, by string) {
	is := func(key, value string) bool { return data[key] == value }
	says := func(keys ...string) string {
		var texts []string
		for _, key := range keys {
			if value, has := data[key]; has {
				texts = append(texts, fmt.Sprintf("%s=%.*s", key, maxShown, strings.Join(strings.Fields(value), " ")))
			}
		}
		return strings.Join(texts, ", ")
	}
	const legacy, ipsec, proxy, masquerade = "enable-host-legacy-routing", "enable-ipsec", "kube-proxy-replacement", "enable-bpf-masquerade"
	const masquerade4, masquerade6 = "enable-ipv4-masquerade", "enable-ipv6-masquerade"
	unused := func(on, family string) bool { return is(on, "false") || is(family, "false") }
	switch {
	case is(legacy, "true"):
		return v1alpha1.HostRoutingLegacy, says(legacy)
	case is(ipsec, "true"):
		return v1alpha1.HostRoutingLegacy, says(ipsec)
	case is(proxy, "false"), is(proxy, "disabled"):
		return v1alpha1.HostRoutingLegacy, says(proxy)
	case !is(proxy, "true") && !is(proxy, "strict"):
		return "", ""
	case is(masquerade, "true"):
		return v1alpha1.HostRoutingBPF, says(proxy, masquerade, legacy)
	case unused(masquerade4, "enable-ipv4") && unused(masquerade6, "enable-ipv6"):
		return v1alpha1.HostRoutingBPF, says(proxy, masquerade4, masquerade6, legacy)
	}
	return v1alpha1.HostRoutingLegacy, "no enable-bpf-masquerade=true"
}
