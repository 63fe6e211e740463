package lab

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// markKey is the environment entry that every process of a lab carries.
const markKey = "ENTENTE_LAB_PROCESS_OF"

func labMark(name string) string { return markKey + "=" + name }

// Status is a lab as it is now.
type Status struct {
	Name string `json:"name"`
	// State is down, leftover (something of a lab that died is still there),
	// starting, ready or failed.
	State string `json:"state"`
	// Error says why the lab failed.
	Error    string          `json:"error,omitempty"`
	Dir      string          `json:"dir,omitempty"`
	Daemon   int             `json:"daemon,omitempty"` // process
	Options  *Options        `json:"options,omitempty"`
	Clusters []ClusterStatus `json:"clusters,omitempty"`
	Hosts    []HostStatus    `json:"hosts,omitempty"`
	Faults   Faults          `json:"faults"`
}

// HostStatus is a host on the shared LAN, or on the one that nodes move to.
type HostStatus struct {
	Name string `json:"name"`
	// LAN is which: 1 is the shared one.
	LAN      int        `json:"lan"`
	Address  netip.Addr `json:"address"`
	Address6 netip.Addr `json:"address6,omitzero"`
	// PID is the host's first process, through which its namespaces are reached.
	PID int `json:"pid"`
}

// States of a lab.
const (
	StateDown     = "down"
	StateLeftover = "leftover"
	StateStarting = "starting"
	StateReady    = "ready"
	StateFailed   = "failed"
)

// ClusterStatus is one cluster as it is now.
type ClusterStatus struct {
	Name        string       `json:"name"`
	Kubeconfig  string       `json:"kubeconfig"`
	Server      string       `json:"server"`
	Ready       bool         `json:"ready"` // the API server says so
	PodCIDR     string       `json:"podCIDR"`
	ServiceCIDR string       `json:"serviceCIDR"`
	Nodes       []NodeStatus `json:"nodes,omitempty"`
	Components  []Process    `json:"components,omitempty"` // of a light lab
	Logs        string       `json:"logs,omitempty"`
}

// NodeStatus is one node as it is now.
type NodeStatus struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	// PID is the node's first process, through which its namespaces are
	// reached; 0 if the node is stopped.
	PID        int       `json:"pid,omitempty"`
	Ready      bool      `json:"ready"` // the API server says so
	Components []Process `json:"components,omitempty"`
	Logs       string    `json:"logs"`
}

// upLockFile keeps two from making the same lab at once.
func upLockFile(name string) string { return filepath.Join(baseDir(), ".up-"+name) }

// daemonSpec says what a daemon runs.
type daemonSpec struct {
	Plan     Plan     `json:"plan"`
	Binaries Binaries `json:"binaries"`
	Images   []string `json:"images,omitempty"` // archives
}

// daemonState is written by the daemon once it serves.
type daemonState struct {
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
}

// Names of files in a lab's folder.
const (
	specFile   = "spec.json"
	stateFile  = "daemon.json"
	socketFile = "daemon.sock"
)

// baseDir is where labs keep what they have on disk: /var/lib/entente-lab for
// root, a folder of the user's own for others, who can run light labs.
func baseDir() string {
	if os.Getuid() == 0 {
		return "/var/lib/entente-lab"
	}
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "entente-lab")
	}
	return filepath.Join(os.Getenv("HOME"), ".local", "state", "entente-lab")
}

func labDir(name string) string { return filepath.Join(baseDir(), name) }

func readSpec(dir string) (daemonSpec, error) {
	var s daemonSpec
	b, err := os.ReadFile(filepath.Join(dir, specFile))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("read %s: %w", specFile, err)
	}
	return s, nil
}

func clusterDir(dir, cluster string) string { return filepath.Join(dir, cluster) }

func kubeconfigFile(dir, cluster string) string {
	return filepath.Join(clusterDir(dir, cluster), "kubeconfig")
}

func internalKubeconfigFile(dir, cluster string) string {
	return kubeconfigFile(dir, cluster) + ".internal"
}

func nodeRoot(dir, node string) string { return filepath.Join(dir, "nodes", node) }

// nodeRequest switches a node off or on.
type nodeRequest struct {
	Node   string `json:"node"`
	Action string `json:"action"` // stop or start
}

// readdressRequest switches a node off and on again with another address.
type readdressRequest struct {
	Node    string     `json:"node"`
	Address netip.Addr `json:"address"`
}

// hostRequest makes a host on a LAN, by its number, or removes it.
type hostRequest struct {
	Name   string `json:"name"`
	LAN    int    `json:"lan,omitempty"`
	Remove bool   `json:"remove,omitempty"`
}

// loadRequest imports an image archive, a path on the machine, into nodes or
// clusters; into all nodes without any.
type loadRequest struct {
	Archive string   `json:"archive"`
	To      []string `json:"to,omitempty"`
}
