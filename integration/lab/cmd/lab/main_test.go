package main

import (
	"bytes"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/entente-dev/entente/integration/lab"
)

func TestFlagsAreAcceptedAnywhere(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want []string
		span time.Duration
		bad  bool
	}{
		{"before", []string{"--for", "1s", "a", "b"}, []string{"a", "b"}, time.Second, false},
		{"after", []string{"a", "b", "--for=1s"}, []string{"a", "b"}, time.Second, false},
		{"between", []string{"a", "--for", "1s", "b"}, []string{"a", "b"}, time.Second, false},
		{"not behind a double dash", []string{"a", "--", "--for"}, []string{"a", "--for"}, 0, false},
		{"not if unknown", []string{"a", "b", "--nonsense"}, nil, 0, true},
		{"with as many arguments as wanted", []string{"a"}, nil, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fs := flag.NewFlagSet("x", flag.ContinueOnError)
			fs.SetOutput(&bytes.Buffer{})
			span := fs.Duration("for", 0, "")
			got, err := (&command{args: tt.args}).parse(fs, 2, 2)
			if (err != nil) != tt.bad {
				t.Fatalf("error is %v", err)
			}
			if !cmp.Equal(tt.want, got) || *span != tt.span {
				t.Errorf("arguments are %q, flag is %v", got, *span)
			}
		})
	}
}

func TestUpOptionsAreRead(t *testing.T) {
	usual := lab.Options{
		Name: "lab", Clusters: 2, Nodes: 1, CIDRs: lab.SameCIDRs, Families: lab.IPv4Only, LAN: lab.SeparateLANs,
		Subnets: 1, CNI: lab.BridgeCNI, IPAM: lab.NodeIPAM, Proxy: lab.NFTablesProxy,
	}
	for line, change := range map[string]func(*lab.Options){
		"": func(*lab.Options) {},
		"--clusters 3 --nodes 2 --cidrs distinct": func(o *lab.Options) { o.Clusters, o.Nodes, o.CIDRs = 3, 2, lab.DistinctCIDRs },
		"--families dual":                         func(o *lab.Options) { o.Families = lab.DualStack },
		"--lan shared --check-kubelets":           func(o *lab.Options) { o.LAN, o.CheckKubelets = lab.SharedLAN, true },
		"--subnets 2 --cni flannel":               func(o *lab.Options) { o.Subnets, o.CNI = 2, lab.FlannelCNI },
		"--ipam shared-pool --no-node-cidrs":      func(o *lab.Options) { o.IPAM, o.NoNodeCIDRs = lab.SharedPoolIPAM, true },
		"--ipam pool --proxy iptables":            func(o *lab.Options) { o.IPAM, o.Proxy = lab.PoolIPAM, lab.IPTablesProxy },
	} {
		want := usual
		change(&want)
		got, err := (&command{name: "lab", args: strings.Fields(line)}).upOptions()
		if err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q (-want +got):\n%s", line, d)
		}
	}
	if o, err := (&command{args: []string{"--ipam"}}).upOptions(); err == nil {
		t.Errorf("a flag without a value is read as %+v", o)
	}
}

func TestFaultCommandsAreRead(t *testing.T) {
	for line, want := range map[string]lab.FaultRequest{
		"cut a b":         {Kind: "cut", A: "a", B: "b"},
		"heal":            {Kind: "heal"},
		"heal a":          {Kind: "heal", A: "a"},
		"heal a b":        {Kind: "heal", A: "a", B: "b"},
		"loss a b 2.5":    {Kind: "loss", A: "a", B: "b", LossPercent: 2.5},
		"loss a b 10%":    {Kind: "loss", A: "a", B: "b", LossPercent: 10},
		"delay a b 150ms": {Kind: "delay", A: "a", B: "b", Delay: 150 * time.Millisecond},
		"nat a":           {Kind: "nat", A: "a"},
		"nat a off":       {Kind: "nonat", A: "a"},
	} {
		words := strings.Fields(line)
		got, err := (&command{args: words[1:]}).faultRequest(words[0])
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", line, d)
		}
	}
	for _, line := range []string{"cut a", "loss a b", "loss a b much", "delay a b 3", "nat a on", "nat", "heal a b c"} {
		words := strings.Fields(line)
		if got, err := (&command{args: words[1:]}).faultRequest(words[0]); err == nil {
			t.Errorf("%s is read as %+v", line, got)
		}
	}
}

func TestStatusShowsFaults(t *testing.T) {
	var out bytes.Buffer
	printStatus(&out, lab.Status{
		Name: "lab", State: lab.StateReady,
		Clusters: []lab.ClusterStatus{{Name: "lab-1", Ready: true, Nodes: []lab.NodeStatus{
			{Name: "lab-1-1"},
			{Name: "lab-1-2", PID: 7, Components: []lab.Process{{Name: "kubelet", Restarts: 2, Last: "exit status 1"}, {Name: "kube-proxy"}}},
		}}},
		Faults: lab.Faults{Pairs: []lab.PairFault{{Pair: lab.NewPair("lab-2", "lab-1"), Cut: true}}, NAT: []string{"lab-2"}},
	})
	for _, want := range []string{"lab-1-1  stopped", "kubelet restarted 2 times (exit status 1), kube-proxy waits", "fault: lab-1 - lab-2: cut", "fault: lab-2 is behind NAT"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
