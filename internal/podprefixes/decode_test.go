package podprefixes

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/entente-dev/entente/internal/cidr"
)

// object returns the object of a JSON text.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestObjectsOfPluginsAreRead(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		decode         func(map[string]any, *decoded)
		text           string
		want, disabled []netip.Prefix
		problem        string
	}{
		"an IPPool":                         {ipPool, `{"spec":{"cidr":"192.168.0.0/16","blockSize":26,"natOutgoing":true,"allowedUses":["Workload","Tunnel"]}}`, prefixes("192.168.0.0/16"), nil, ""},
		"an IPPool that is disabled":        {ipPool, `{"spec":{"cidr":"fd00::/48","disabled":true}}`, nil, prefixes("fd00::/48"), ""},
		"an IPPool for tunnels":             {ipPool, `{"spec":{"cidr":"192.168.0.0/16","allowedUses":["Tunnel"]}}`, nil, nil, ""},
		"an IPPool for load balancers":      {ipPool, `{"spec":{"cidr":"192.168.0.0/16","allowedUses":["LoadBalancer"]}}`, nil, nil, ""},
		"an IPPool with other types":        {ipPool, `{"spec":{"cidr":["192.168.0.0/16"],"disabled":"yes","allowedUses":7}}`, nil, nil, "an IPPool has no spec.cidr"},
		"an IPPool with uses as objects":    {ipPool, `{"spec":{"cidr":"192.168.0.0/16","allowedUses":[{"a":[1]}]}}`, nil, nil, ""},
		"an object without spec":            {ipPool, `{"spec":"none"}`, nil, nil, "an IPPool has no spec.cidr"},
		"a CiliumPodIPPool":                 {podIPPool, `{"spec":{"ipv4":{"cidrs":["10.10.0.0/16","10.20.0.0/16"],"maskSize":27},"ipv6":{"cidrs":["fd00:10::/104"]}}}`, prefixes("10.10.0.0/16", "10.20.0.0/16", "fd00:10::/104"), nil, ""},
		"a CiliumPodIPPool since v2":        {podIPPool, `{"spec":{"ipv4":{"cidrs":[{"cidr":"10.10.0.0/16"}]}}}`, prefixes("10.10.0.0/16"), nil, ""},
		"a CiliumPodIPPool with numbers":    {podIPPool, `{"spec":{"ipv4":{"cidrs":[7,{"cidr":8}]},"ipv6":{"cidrs":"fd00::/48"}}}`, nil, nil, "an item of a list of prefixes is not a text"},
		"a CiliumNode":                      {ciliumNode, `{"spec":{"ipam":{"podCIDRs":["10.0.1.0/24","fd00:1::/64"]}}}`, prefixes("10.0.1.0/24", "fd00:1::/64"), nil, ""},
		"a CiliumNode with pools":           {ciliumNode, `{"spec":{"ipam":{"pools":{"allocated":[{"pool":"default","cidrs":["10.10.0.32/27"]}]}}}}`, prefixes("10.10.0.32/27"), nil, ""},
		"a CiliumNode of another type":      {ciliumNode, `{"spec":{"ipam":{"podCIDRs":{"a":1},"pools":[{"allocated":3}]}}}`, nil, nil, "a list of prefixes is not a list"},
		"a prefix with bits of the host":    {ciliumNode, `{"spec":{"ipam":{"podCIDRs":["10.0.1.77/24"]}}}`, prefixes("10.0.1.0/24"), nil, ""},
		"all addresses":                     {ciliumNode, `{"spec":{"ipam":{"podCIDRs":["0.0.0.0/0","::/0","10.0.1.0/24"]}}}`, prefixes("10.0.1.0/24"), nil, "0.0.0.0/0 is not a prefix of pods"},
		"addresses that pods cannot have":   {ciliumNode, `{"spec":{"ipam":{"podCIDRs":["127.0.0.0/16","169.254.0.0/20","224.0.0.0/8","fe80::/64","ff02::/16","96.0.0.0/3"]}}}`, nil, nil, "127.0.0.0/16 is not a prefix of pods"},
		"IPv4 in IPv6":                      {ciliumNode, `{"spec":{"ipam":{"podCIDRs":["::ffff:10.0.0.0/112"]}}}`, nil, nil, "is not a prefix"},
		"an address, a name, an empty text": {ciliumNode, `{"spec":{"ipam":{"podCIDRs":["10.0.0.1","pods","", "10.0.0.0/33"]}}}`, nil, nil, `"10.0.0.1" is not a prefix`},
		"a long text with a line break":     {ciliumNode, `{"spec":{"ipam":{"podCIDRs":["x\n` + strings.Repeat("y", 500) + `"]}}}`, nil, nil, `"x\n` + strings.Repeat("y", 62) + `"…`},
	} {
		var d decoded
		tc.decode(object(t, tc.text), &d)
		if !slices.Equal(d.prefixes, tc.want) || !slices.Equal(d.disabled, tc.disabled) || tc.problem == "" && len(d.problems) > 0 || !strings.Contains(strings.Join(d.problems, "; "), tc.problem) {
			t.Errorf("%s: %v, disabled %v, problems %q", name, d.prefixes, d.disabled, d.problems)
		}
		checkDecoded(t, d)
	}
}

func TestConfigurationsAreRead(t *testing.T) {
	t.Parallel()
	kubeadm := func(text string) func(*decoded) {
		return func(d *decoded) { kubeadmConfig(map[string]string{"ClusterConfiguration": text}, d) }
	}
	cilium := func(data map[string]string) func(*decoded) { return func(d *decoded) { ciliumConfig(data, d) } }
	ovn := func(text string) func(*decoded) { return func(d *decoded) { ovnSubnets(text, d) } }
	pool := map[string]string{"ipam": "cluster-pool", "cluster-pool-ipv4-cidr": "10.0.0.0/16 10.1.0.0/16", "cluster-pool-ipv6-cidr": "fd00::/104", "cluster-pool-ipv4-mask-size": "24"}
	for name, tc := range map[string]struct {
		decode    func(*decoded)
		want      []netip.Prefix
		elsewhere bool
		problem   string
	}{
		"kubeadm's":                    {kubeadm("apiServer: {}\nkind: ClusterConfiguration\nnetworking:\n  dnsDomain: cluster.local\n  podSubnet: 10.244.0.0/16\n  serviceSubnet: 10.96.0.0/12\n"), prefixes("10.244.0.0/16"), false, ""},
		"kubeadm's with both families": {kubeadm("networking: {podSubnet: '10.244.0.0/16,fd00:10:244::/56'}"), prefixes("10.244.0.0/16", "fd00:10:244::/56"), false, ""},
		"kubeadm's without podSubnet":  {kubeadm("networking: {}"), nil, false, ""},
		"kubeadm's that is empty":      {kubeadm(""), nil, false, ""},
		"kubeadm's with a list":        {kubeadm("networking: {podSubnet: [10.244.0.0/16]}"), nil, false, "ClusterConfiguration is not YAML with networking.podSubnet"},
		"kubeadm's that is not YAML":   {kubeadm("\x00{{{"), nil, false, "ClusterConfiguration is not YAML"},
		"kubeadm's that is too long":   {kubeadm("networking: {podSubnet: 10.244.0.0/16}\n#" + strings.Repeat("x", maxText)), nil, false, "the limit is 65536"},
		"kubeadm's that grows when read": {
			kubeadm("a: &a [" + strings.Repeat("x,", 100) + "]\nb: &b [" + strings.Repeat("*a,", 100) + "]\nc: &c [" + strings.Repeat("*b,", 100) + "]\nd: [" + strings.Repeat("*c,", 100) + "]\n"), nil, false,
			"ClusterConfiguration is not YAML",
		},
		"Cilium's with a pool":            {cilium(pool), prefixes("10.0.0.0/16", "10.1.0.0/16", "fd00::/104"), false, ""},
		"Cilium's with several":           {cilium(map[string]string{"ipam": "multi-pool", "cluster-pool-ipv4-cidr": "10.0.0.0/8"}), nil, false, ""},
		"Cilium's with prefixes of Nodes": {cilium(map[string]string{"ipam": "kubernetes", "cluster-pool-ipv4-cidr": "10.0.0.0/8"}), nil, true, ""},
		"Cilium's in a cloud":             {cilium(map[string]string{"ipam": "eni"}), nil, true, ""},
		"OVN-Kubernetes' annotation":      {ovn(`{"default":["10.128.0.0/23","fd01:0:0:1::/64"],"blue":["10.2.0.0/17"]}`), prefixes("10.128.0.0/23", "fd01:0:0:1::/64"), false, ""},
		"an older annotation":             {ovn(`{"default":"10.128.0.0/23"}`), prefixes("10.128.0.0/23"), false, ""},
		"an annotation of other networks": {ovn(`{"blue":["10.2.0.0/17"]}`), nil, false, ""},
		"a malformed annotation":          {ovn(`["10.2.0.0/17"]`), nil, false, "is not JSON of prefixes"},
		"an annotation with numbers":      {ovn(`{"default":7}`), nil, false, "a list of prefixes is not a list"},
	} {
		var d decoded
		tc.decode(&d)
		if !slices.Equal(d.prefixes, tc.want) || d.elsewhere != tc.elsewhere || tc.problem == "" && len(d.problems) > 0 || !strings.Contains(strings.Join(d.problems, "; "), tc.problem) {
			t.Errorf("%s: %v, elsewhere %t, problems %q", name, d.prefixes, d.elsewhere, d.problems)
		}
		checkDecoded(t, d)
	}
}

// However much an object holds, what is kept of it is bounded.
func TestPrefixesOfASourceAreBounded(t *testing.T) {
	t.Parallel()
	var d decoded
	for i := range 3 * maxPrefixes {
		d.add(fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255), fmt.Sprintf("malformed %d", i))
	}
	if len(d.prefixes) != maxPrefixes || len(d.problems) != maxProblems {
		t.Errorf("there are %d prefixes and %d problems", len(d.prefixes), len(d.problems))
	}
}

// checkDecoded fails if something that was read is not as others rely on.
func checkDecoded(t *testing.T, d decoded) {
	t.Helper()
	for _, p := range slices.Concat(d.prefixes, d.disabled) {
		if !p.IsValid() || p != p.Masked() || !unicast(p) || p.Addr().Is4In6() || !slices.Contains(cidr.Of(p), p) {
			t.Errorf("%v was read", p)
		}
	}
	for _, text := range d.problems {
		if len(text) > 1024 || strings.ContainsAny(text, "\n\r\x00") {
			t.Errorf("a problem is %q", text)
		}
	}
	if len(d.prefixes) > maxPrefixes || len(d.disabled) > maxPrefixes || len(d.problems) > maxProblems {
		t.Errorf("there are %d prefixes, %d problems", len(d.prefixes), len(d.problems))
	}
}

func FuzzObjects(f *testing.F) {
	for _, text := range []string{
		`{"spec":{"cidr":"192.168.0.0/16","disabled":true,"allowedUses":["Workload"]}}`, `{"spec":{"ipv4":{"cidrs":["10.10.0.0/16",{"cidr":"10.0.0.0/8"}]}}}`,
		`{"spec":{"ipam":{"podCIDRs":["10.0.1.0/24","::/0"],"pools":{"allocated":[{"cidrs":["fe80::/64"]}]}}}}`, `{"spec":[null,{"cidr":null}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var o map[string]any
		if json.Unmarshal(text, &o) != nil {
			return
		}
		var d decoded
		for _, decode := range []func(map[string]any, *decoded){ipPool, podIPPool, ciliumNode} {
			decode(o, &d)
		}
		checkDecoded(t, d)
	})
}

func FuzzTexts(f *testing.F) {
	for _, text := range []string{"10.0.0.0/8 fd00::/48,10.1.0.0/16", `{"default":["10.128.0.0/23"]}`, "networking:\n  podSubnet: 10.244.0.0/16,fd00::/56\n", "a: &a [*a]", "\xff\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var d decoded
		ovnSubnets(text, &d)
		kubeadmConfig(map[string]string{"ClusterConfiguration": text}, &d)
		for _, ipam := range []string{"cluster-pool", "multi-pool", text} {
			ciliumConfig(map[string]string{"ipam": ipam, "cluster-pool-ipv4-cidr": text, "cluster-pool-ipv6-cidr": text}, &d)
		}
		checkDecoded(t, d)
	})
}
