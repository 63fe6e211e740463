package lab

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
)

// ports are the TCP ports of one cluster's control plane.
type ports struct {
	API, Etcd, EtcdPeer, ControllerManager, Scheduler, Kwok int
}

// nodePorts are used where the control plane has a network namespace to itself.
var nodePorts = ports{API: 6443, Etcd: 2379, EtcdPeer: 2380, ControllerManager: 10257, Scheduler: 10259, Kwok: 10247} //nolint:gochecknoglobals // a constant

// apiServer is where c's API server is.
func apiServer(c ClusterPlan) string {
	return netip.AddrPortFrom(c.Control().Address, uint16(nodePorts.API)).String()
}

// controlPlane has everything to run one cluster's control plane.
type controlPlane struct {
	cluster ClusterPlan
	kube    string // path of the multi-call binary
	pki     string // directory of keys, certificates and the components' kubeconfigs
	data    string // directory of etcd
	bind    netip.Addr
	// advertise is the address that the Service kubernetes leads to.
	advertise netip.Addr
	ports     ports
	// kwok is the path of kwok and stages the files that define what fake nodes and pods do;
	// without kwok both are empty.
	kwok   string
	stages []string
	// checkKubelets has the API server check the certificates of kubelets.
	checkKubelets bool
	// noNodeCIDRs has the controller manager give nodes no podCIDRs.
	noNodeCIDRs bool
}

// processes lists what to run: a function of the plan alone.
func (c controlPlane) processes() []process {
	pki := func(file string) string { return filepath.Join(c.pki, file) }
	url := func(port int) string { return "https://127.0.0.1:" + strconv.Itoa(port) }
	ready := []condition{{Ready: pki("admin.kubeconfig")}}
	nodes := len(c.cluster.Nodes) > 0

	etcd := []string{
		c.kube, "etcd",
		"--name=etcd",
		"--data-dir=" + c.data,
		"--unsafe-no-fsync",
		"--snapshot-count=10000",
		"--listen-client-urls=" + url(c.ports.Etcd),
		"--advertise-client-urls=" + url(c.ports.Etcd),
		"--listen-peer-urls=" + url(c.ports.EtcdPeer),
		"--initial-advertise-peer-urls=" + url(c.ports.EtcdPeer),
		"--initial-cluster=etcd=" + url(c.ports.EtcdPeer),
		"--cert-file=" + pki("etcd.crt"), "--key-file=" + pki("etcd.key"),
		"--trusted-ca-file=" + pki("etcd-ca.crt"), "--client-cert-auth",
		"--peer-cert-file=" + pki("etcd.crt"), "--peer-key-file=" + pki("etcd.key"),
		"--peer-trusted-ca-file=" + pki("etcd-ca.crt"), "--peer-client-cert-auth",
		"--log-level=warn",
	}
	apiserver := []string{
		c.kube, "kube-apiserver",
		"--etcd-servers=" + url(c.ports.Etcd),
		"--etcd-cafile=" + pki("etcd-ca.crt"), "--etcd-certfile=" + pki("etcd.crt"), "--etcd-keyfile=" + pki("etcd.key"),
		"--bind-address=" + c.bind.String(),
		"--secure-port=" + strconv.Itoa(c.ports.API),
		"--advertise-address=" + c.advertise.String(),
		"--service-cluster-ip-range=" + list(c.cluster.ServiceCIDRs()),
		"--client-ca-file=" + pki("ca.crt"),
		"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
		"--kubelet-client-certificate=" + pki("apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + pki("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP,Hostname",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("service-account.crt"),
		"--service-account-signing-key-file=" + pki("service-account.key"),
		"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki("front-proxy.crt"),
		"--proxy-client-key-file=" + pki("front-proxy.key"),
		"--enable-aggregator-routing=true",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
	}
	if c.checkKubelets {
		apiserver = append(apiserver, "--kubelet-certificate-authority="+pki("ca.crt"))
	}
	manager := []string{
		c.kube, "kube-controller-manager",
		"--kubeconfig=" + pki("kube-controller-manager.kubeconfig"),
		"--authentication-kubeconfig=" + pki("kube-controller-manager.kubeconfig"),
		"--authorization-kubeconfig=" + pki("kube-controller-manager.kubeconfig"),
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(c.ports.ControllerManager),
		"--tls-cert-file=" + pki("kube-controller-manager.crt"),
		"--tls-private-key-file=" + pki("kube-controller-manager.key"),
		"--root-ca-file=" + pki("ca.crt"),
		"--cluster-signing-cert-file=" + pki("ca.crt"),
		"--cluster-signing-key-file=" + pki("ca.key"),
		"--service-account-private-key-file=" + pki("service-account.key"),
		"--use-service-account-credentials=true",
		"--service-cluster-ip-range=" + list(c.cluster.ServiceCIDRs()),
		"--leader-elect=false",
		"--profiling=false",
	}
	if nodes && !c.noNodeCIDRs {
		manager = append(manager, "--allocate-node-cidrs=true", "--cluster-cidr="+list(c.cluster.PodCIDRs()))
		manager = append(manager, c.nodeMasks()...)
	}
	scheduler := []string{
		c.kube, "kube-scheduler",
		"--kubeconfig=" + pki("kube-scheduler.kubeconfig"),
		"--authentication-kubeconfig=" + pki("kube-scheduler.kubeconfig"),
		"--authorization-kubeconfig=" + pki("kube-scheduler.kubeconfig"),
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(c.ports.Scheduler),
		"--tls-cert-file=" + pki("kube-scheduler.crt"),
		"--tls-private-key-file=" + pki("kube-scheduler.key"),
		"--leader-elect=false",
		"--profiling=false",
	}
	// Labs share few processors; of memory there is more.
	collectLess := []string{"GOGC=300"}
	ps := []process{
		{Name: "etcd", Args: etcd, Env: collectLess},
		{Name: "kube-apiserver", Args: apiserver, Env: collectLess},
		{Name: "kube-controller-manager", Args: manager, Env: collectLess, After: ready},
		{Name: "kube-scheduler", Args: scheduler, Env: collectLess, After: ready},
	}
	if c.kwok != "" {
		args := []string{
			c.kwok,
			"--kubeconfig=" + pki("admin.kubeconfig"),
			"--manage-all-nodes=false",
			"--manage-nodes-with-label-selector=" + fakeNodeLabel + "=true",
			"--node-lease-duration-seconds=40",
			"--cidr=10.64.0.0/12",
			"--node-ip=" + c.advertise.String(),
			"--node-port=" + strconv.Itoa(c.ports.Kwok),
			"--server-address=127.0.0.1:" + strconv.Itoa(c.ports.Kwok),
		}
		for _, s := range c.stages {
			args = append(args, "--config="+s)
		}
		// The first thing it makes is leases, whose namespace appears a moment
		// after the API server is ready.
		leases := condition{Ready: pki("admin.kubeconfig"), Path: kubeNodeLease.path}
		ps = append(ps, process{Name: "kwok", Args: args, After: []condition{leases}})
	}
	return ps
}

// nodeMasks say how large a node's share of the pods' prefix is, in each family.
func (c controlPlane) nodeMasks() []string {
	prefixes := c.cluster.Nodes[0].PodCIDRs()
	if len(prefixes) == 1 {
		return []string{"--node-cidr-mask-size=" + strconv.Itoa(prefixes[0].Bits())}
	}
	return []string{
		"--node-cidr-mask-size-ipv4=" + strconv.Itoa(prefixes[0].Bits()),
		"--node-cidr-mask-size-ipv6=" + strconv.Itoa(prefixes[1].Bits()),
	}
}

// writeKubeconfigs writes the kubeconfigs of the control plane's components.
func (c controlPlane) writeKubeconfigs() error {
	server := fmt.Sprintf("https://127.0.0.1:%d", c.ports.API)
	for _, user := range []string{"admin", "kube-controller-manager", "kube-scheduler"} {
		if err := writeKubeconfig(filepath.Join(c.pki, user+".kubeconfig"), c.cluster.Name, c.pki, user, server); err != nil {
			return err
		}
	}
	return nil
}
