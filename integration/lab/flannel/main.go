// Command flannel is flanneld as a Kubernetes cluster runs it, put together from
// flannel's own packages: the node's podCIDR, the backend vxlan or host-gw, and
// flannel's own masquerading. flanneld's main has backends for clouds and one that needs
// a C compiler, too.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/hostgw"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"
	"github.com/flannel-io/flannel/pkg/trafficmngr/nftables"
)

// resyncSeconds is flanneld's default of --iptables-resync.
const resyncSeconds = 5

func main() {
	kubeconfig := flag.String("kubeconfig-file", "", "access to the API server; NODE_NAME is the node")
	netConf := flag.String("net-config-path", "", "the network, its backend and EnableNFTables")
	iface := flag.String("iface", "", "the interface between nodes")
	subnetFile := flag.String("subnet-file", "/run/flannel/subnet.env", "what the CNI configuration is made of, written when the network is up")
	flag.Parse()
	if err := run(context.Background(), *kubeconfig, *netConf, *iface, *subnetFile); err != nil {
		fmt.Fprintln(os.Stderr, "flannel:", err)
		os.Exit(1)
	}
}

// run does what flanneld does with --kube-subnet-mgr and --ip-masq, in its order.
func run(ctx context.Context, kubeconfig, netConf, iface, subnetFile string) error {
	subnets, err := kube.NewSubnetManager(ctx, "", kubeconfig, "flannel.alpha.coreos.com", netConf, true)
	if err != nil {
		return fmt.Errorf("watch the nodes: %w", err)
	}
	config, err := subnets.GetNetworkConfig(ctx)
	if err != nil {
		return fmt.Errorf("read %s: %w", netConf, err)
	}
	stack, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return err
	}
	uplink, err := ipmatch.LookupExtIface(iface, "", "", stack, ipmatch.PublicIPOpts{})
	if err != nil {
		return fmt.Errorf("find interface %s: %w", iface, err)
	}
	chosen, err := backend.NewManager(ctx, subnets, uplink).GetBackend(config.BackendType)
	if err != nil {
		return fmt.Errorf("choose the backend: %w", err)
	}
	var wg sync.WaitGroup
	network, err := chosen.RegisterNetwork(ctx, &wg, config)
	if err != nil {
		return fmt.Errorf("set up backend %s: %w", config.BackendType, err)
	}
	var rules trafficmngr.TrafficManager = &iptables.IPTablesManager{}
	if config.EnableNFTables {
		rules = &nftables.NFTablesManager{}
	}
	if err := rules.Init(ctx); err != nil {
		return fmt.Errorf("make tables: %w", err)
	}
	var none4 ip.IP4Net
	var none6 ip.IP6Net
	if err := rules.SetupAndEnsureMasqRules(ctx, config.Network, none4, none4, config.IPv6Network, none6, none6, network.Lease(), resyncSeconds, false); err != nil {
		return fmt.Errorf("set up masquerading: %w", err)
	}
	rules.SetupAndEnsureForwardRules(ctx, config.Network, config.IPv6Network, resyncSeconds)
	if err := subnets.HandleSubnetFile(subnetFile, config, true, network.Lease().Subnet, network.Lease().IPv6Subnet, network.MTU()); err != nil {
		return fmt.Errorf("write %s: %w", subnetFile, err)
	}
	wg.Go(func() { network.Run(ctx) })
	if err := subnets.CompleteLease(ctx, network.Lease(), &wg); err != nil {
		return fmt.Errorf("complete the lease: %w", err)
	}
	wg.Wait()
	return nil
}
