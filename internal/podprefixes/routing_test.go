package podprefixes

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// The settings are those that Cilium's chart writes; the cases are Cilium's own, of when it falls back to routing by
// the kernel.
func TestCiliumsRoutingIsReadFromItsSettings(t *testing.T) {
	t.Parallel()
	const bpf, legacy = "BPF", "Legacy"
	for name, tc := range map[string]struct {
		settings string
		want, by string
	}{
		"Cilium's defaults":                    {"kube-proxy-replacement=false enable-bpf-masquerade=false enable-ipv4-masquerade=true", legacy, "kube-proxy-replacement=false"},
		"kube-proxy replaced, by iptables":     {"kube-proxy-replacement=true enable-ipv4=true enable-ipv4-masquerade=true", legacy, "no enable-bpf-masquerade=true"},
		"kube-proxy replaced, no masquerade":   {"kube-proxy-replacement=true enable-ipv4-masquerade=false enable-ipv6=false enable-ipv6-masquerade=true", bpf, "kube-proxy-replacement=true, enable-ipv4-masquerade=false"},
		"all by eBPF":                          {"kube-proxy-replacement=true enable-bpf-masquerade=true enable-host-legacy-routing=false", bpf, "kube-proxy-replacement=true, enable-bpf-masquerade=true, enable-host-legacy-routing=false"},
		"all by eBPF, in older versions":       {"kube-proxy-replacement=strict enable-bpf-masquerade=true", bpf, "kube-proxy-replacement=strict"},
		"all by eBPF, but the routing":         {"kube-proxy-replacement=true enable-bpf-masquerade=true enable-host-legacy-routing=true", legacy, "enable-host-legacy-routing=true"},
		"with IPsec":                           {"kube-proxy-replacement=true enable-bpf-masquerade=true enable-ipsec=true", legacy, "enable-ipsec=true"},
		"masquerade of one family by the host": {"kube-proxy-replacement=true enable-ipv4-masquerade=false enable-ipv6=true enable-ipv6-masquerade=true", legacy, "no enable-bpf-masquerade=true"},
		"a value of other versions":            {"kube-proxy-replacement=partial enable-bpf-masquerade=true", "", ""},
		"not Cilium's chart":                   {"ipam=kubernetes", "", ""},
		"a long value":                         {"kube-proxy-replacement=true enable-bpf-masquerade=true enable-host-legacy-routing=" + strings.Repeat("x", 500), bpf, "enable-host-legacy-routing=" + strings.Repeat("x", maxShown)},
	} {
		data := map[string]string{}
		for setting := range strings.FieldsSeq(tc.settings) {
			key, value, _ := strings.Cut(setting, "=")
			data[key] = value
		}
		if kind, by := hostRouting(data); kind != tc.want || !strings.Contains(by, tc.by) || len(by) > 512 {
			t.Errorf("%s: %q by %q, want %q by %q", name, kind, by, tc.want, tc.by)
		}
	}
}

// It is read each two minutes, is what was last read while the API server fails, and not known without the right to read it.
func TestCiliumsRoutingIsReadNowAndThen(t *testing.T) {
	t.Parallel()
	reader, s, _, clock := newReader(t, "10.244.0.9")
	r := &Routing{Direct: reader.Direct, Now: reader.Now, Log: reader.Log}
	const path = "/api/v1/namespaces/kube-system/configmaps/cilium-config"
	check := func(want, when string) {
		t.Helper()
		if got, _ := r.Get(t.Context()); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
		*clock = clock.Add(time.Minute)
	}
	check("", "without Cilium")
	s.config("cilium-config", map[string]string{"kube-proxy-replacement": "true", "enable-bpf-masquerade": "true"})
	check("", "within two minutes")
	check("BPF", "later")
	s.fail(path, http.StatusInternalServerError)
	*clock = clock.Add(time.Hour)
	check("BPF", "while the API server fails")
	s.fail(path, http.StatusForbidden)
	*clock = clock.Add(time.Hour)
	check("", "without the right")
}
