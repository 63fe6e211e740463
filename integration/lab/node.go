package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// Paths inside a node's root.
const (
	nodeBin      = "/opt/lab"
	nodePKI      = "/etc/kubernetes/pki"
	nodeConfig   = "/etc/kubernetes"
	nodeLogs     = "/var/log/lab"
	nodeSpecFile = "/etc/lab-node.json"
	nodeStatus   = "/run/lab/status.json"
	containerd   = "/run/containerd/containerd.sock"
)

// nodeSpec is the input of a node's first process.
type nodeSpec struct {
	Lab     string      `json:"lab"`
	Cluster ClusterPlan `json:"cluster"`
	Node    NodePlan    `json:"node"`
	// Mounts are folders of the machine to show read-only inside, by their
	// path inside.
	Mounts map[string]string `json:"mounts"`
	// Images are the archives to import, as paths inside.
	Images []string `json:"images"`
	// Kwok is set if the control plane is to run fake nodes too.
	Kwok   bool     `json:"kwok"`
	Stages []string `json:"stages,omitempty"`
	// Options are the lab's.
	Options Options `json:"options"`
}

// processes lists what the node runs.
func (s nodeSpec) processes() []process {
	kube := nodeBin + "/kube/kube"
	var ps []process
	apiReady := condition{Ready: nodeConfig + "/kubelet.kubeconfig"}
	if s.Node.Control {
		ps = s.control().processes()
		apiReady = condition{Ready: nodePKI + "/admin.kubeconfig"}
	}
	if s.Options.CNI == FlannelCNI {
		ps = append(ps, s.flannel())
	}
	return append(ps,
		process{Name: "containerd", Args: []string{nodeBin + "/node/containerd", "--config=/etc/containerd/config.toml"}},
		process{Name: "kubelet", Args: []string{
			kube, "kubelet",
			"--config=" + nodeConfig + "/kubelet.json",
			"--kubeconfig=" + nodeConfig + "/kubelet.kubeconfig",
			"--hostname-override=" + s.Node.Name,
			"--node-ip=" + list(s.nodeIPs()),
			"--housekeeping-interval=60s",
		}, After: []condition{{Step: "import images"}, apiReady}},
		process{Name: "kube-proxy", Args: []string{
			kube, "kube-proxy",
			"--config=" + nodeConfig + "/kube-proxy.json",
			"--hostname-override=" + s.Node.Name,
		}, After: []condition{apiReady}},
	)
}

// families are those of the node's cluster.
func (s nodeSpec) families() Families { return s.Options.Families.of(s.Cluster.Index) }

// nodeIPs are the addresses that the node has in Kubernetes.
func (s nodeSpec) nodeIPs() []netip.Addr {
	if s.families() == DualStack {
		return s.Node.Addresses()
	}
	return []netip.Addr{s.Node.Address}
}

func machineID(node string) string {
	h := sha256.Sum256([]byte("entente lab node " + node))
	return hex.EncodeToString(h[:16])
}

func (s nodeSpec) control() controlPlane {
	c := controlPlane{
		cluster: s.Cluster, kube: nodeBin + "/kube/kube", pki: nodePKI, data: "/var/lib/etcd",
		bind: s.everywhere(), advertise: s.Node.Address, ports: nodePorts,
		checkKubelets: s.Options.CheckKubelets, noNodeCIDRs: s.Options.NoNodeCIDRs,
	}
	if s.Kwok {
		c.kwok, c.stages = nodeBin+"/kwok/kwok", s.Stages
	}
	return c
}

// everywhere is the address to listen on for all that the node has.
func (s nodeSpec) everywhere() netip.Addr {
	if s.families().has6() {
		return netip.IPv6Unspecified() // and with it IPv4
	}
	return netip.IPv4Unspecified()
}

// hosts is the node's /etc/hosts.
func (s nodeSpec) hosts() string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
	for _, a := range s.nodeIPs() {
		fmt.Fprintf(&b, "%s %s\n", a, s.Node.Name)
	}
	return b.String()
}

// files are the configuration files of the node's components.
func (s nodeSpec) files() (map[string]string, error) {
	fs := map[string]string{
		"/etc/hostname":               s.Node.Name + "\n",
		"/etc/hosts":                  s.hosts(),
		"/etc/resolv.conf":            "",
		"/etc/machine-id":             machineID(s.Node.Name) + "\n",
		"/etc/containerd/config.toml": containerdConfig,
	}
	configs := map[string]any{
		nodeConfig + "/kubelet.json":    s.kubeletConfig(),
		nodeConfig + "/kube-proxy.json": s.proxyConfig(),
	}
	if s.Options.CNI == FlannelCNI {
		configs[flannelConfig] = s.flannelNetwork()
	} else {
		configs[cniConfigFile] = s.cniConfig()
	}
	for name, v := range configs {
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", name, err)
		}
		fs[name] = string(b) + "\n"
	}
	return fs, nil
}

// maxPods is how many pods a node takes, which has a /24 of addresses for them.
const maxPods = 240

func (s nodeSpec) kubeletConfig() map[string]any {
	return m{
		"apiVersion":     "kubelet.config.k8s.io/v1beta1",
		"kind":           "KubeletConfiguration",
		"address":        s.everywhere().String(),
		"authentication": m{"anonymous": m{"enabled": false}, "webhook": m{"enabled": true}, "x509": m{"clientCAFile": nodePKI + "/ca.crt"}},
		"authorization":  m{"mode": "Webhook"},
		"tlsCertFile":    nodePKI + "/kubelet-serving-" + s.Node.Name + ".crt", "tlsPrivateKeyFile": nodePKI + "/kubelet-serving-" + s.Node.Name + ".key",
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               s.Node.Cgroup,
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"maxPods":                  maxPods,
		"clusterDNS":               []string{s.Cluster.DNSService.String()},
		"clusterDomain":            "cluster.local",
		"resolvConf":               "",
		"containerRuntimeEndpoint": "unix://" + containerd,
		"serializeImagePulls":      false,
		"makeIPTablesUtilChains":   false,
		// The machine's own disk and memory are not the lab's to judge, and
		// polling them costs more than the rest of an idle kubelet.
		"localStorageCapacityIsolation": false,
		"evictionHard": m{
			"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "imagefs.inodesFree": "0%",
		},
		"imageGCHighThresholdPercent": 100,
		"readOnlyPort":                0,
	}
}

func (s nodeSpec) proxyConfig() map[string]any {
	mode := s.Options.Proxy
	return m{
		"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
		"kind":             "KubeProxyConfiguration",
		"mode":             mode,
		"clusterCIDR":      list(s.Cluster.PodCIDRs()),
		"clientConnection": m{"kubeconfig": nodeConfig + "/kube-proxy.kubeconfig"},
		// The machine's connection table is not writable from a namespace.
		"conntrack":  m{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
		string(mode): m{"minSyncPeriod": "200ms"},
	}
}

// pkiFiles lists the keys and certificates that the node needs; nil means all.
func (s nodeSpec) pkiFiles() []string {
	if s.Node.Control {
		return nil
	}
	return []string{"ca.crt", "kubelet-serving-" + s.Node.Name + ".crt", "kubelet-serving-" + s.Node.Name + ".key"}
}

// prepare fills the node's root: everything that the node's components read.
// pki is the folder with the cluster's keys and certificates.
func (s nodeSpec) prepare(root, pki string) error {
	for _, d := range []string{
		"/etc/kubernetes/pki", "/etc/cni/net.d", filepath.Dir(flannelConfig), "/etc/containerd", "/etc/ssl", "/etc/alternatives", "/etc/iproute2",
		"/var/lib/kubelet", "/var/lib/containerd", nodeLogs, "/var/tmp", "/tmp", "/root", "/run", "/proc", "/sys", "/dev", "/opt", "/home", "/mnt", "/old",
	} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "/var/lib/etcd"), 0o700); err != nil {
		return err
	}
	for in := range s.Mounts {
		if err := os.MkdirAll(filepath.Join(root, in), 0o755); err != nil {
			return err
		}
	}
	for link, to := range map[string]string{"/var/run": "/run", "/var/lock": "/run/lock"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil && !os.IsExist(err) {
			return err
		}
	}
	files, err := s.files()
	if err != nil {
		return err
	}
	spec, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	files[nodeSpecFile] = string(spec)
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(data), 0o644); err != nil {
			return err
		}
	}
	for _, f := range []string{"passwd", "group", "nsswitch.conf", "protocols", "services", "ethertypes", "ld.so.cache", "localtime"} {
		if err := copyFile(filepath.Join("/etc", f), filepath.Join(root, "etc", f)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return s.prepareKeys(filepath.Join(root, nodePKI), filepath.Join(root, nodeConfig), pki)
}

func (s nodeSpec) prepareKeys(to, config, pki string) error {
	names := s.pkiFiles()
	if names == nil {
		entries, err := os.ReadDir(pki)
		if err != nil {
			return err
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	for _, n := range names {
		if err := copyFile(filepath.Join(pki, n), filepath.Join(to, n)); err != nil {
			return err
		}
	}
	server := "https://" + apiServer(s.Cluster)
	if err := writeKubeconfig(filepath.Join(config, "kubelet.kubeconfig"), s.Cluster.Name, pki, "kubelet-"+s.Node.Name, server); err != nil {
		return err
	}
	if err := writeKubeconfig(filepath.Join(config, "kube-proxy.kubeconfig"), s.Cluster.Name, pki, "kube-proxy", server); err != nil {
		return err
	}
	if s.Options.CNI == FlannelCNI {
		if err := writeKubeconfig(filepath.Join(config, filepath.Base(flannelKubeCfg)), s.Cluster.Name, pki, "flannel", server); err != nil {
			return err
		}
	}
	if !s.Node.Control {
		return nil
	}
	c := s.control()
	c.pki = to
	return c.writeKubeconfigs()
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	fi, err := os.Stat(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, fi.Mode().Perm())
}

// containerdConfig is the same for all nodes: each has its own root.
const containerdConfig = `version = 3
root = '/var/lib/containerd'
state = '/run/containerd'

[grpc]
  address = '/run/containerd/containerd.sock'

[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '` + PauseImage + `'

[plugins.'io.containerd.cri.v1.runtime']
  # Root without CAP_SYS_RESOURCE may not lower the score.
  restrict_oom_score_adj = true
  # Every second is the default, and costs a third of a percent of a core a pod.
  stats_collect_period = '60s'
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['/opt/lab/node', '/opt/lab/ptp']
    conf_dir = '/etc/cni/net.d'

[plugins.'io.containerd.nri.v1.nri']
  disable = true
`

// nodePath is the PATH of a node's processes.
const nodePath = "PATH=" + nodeBin + "/node:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
