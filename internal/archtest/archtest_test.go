package archtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/entente-dev/entente"

// rule lists what the packages that it covers may depend on.
type rule struct {
	// packages are paths inside the module; "x/..." covers what is below x too.
	packages string
	// ours is every package of this module that may be reached, also through
	// others. The packages covered by the same rule may always reach each other.
	ours []string
	// outside is what may be imported of other modules, as path prefixes. What
	// those import in turn has rules of its own. The standard library is free.
	outside []string
}

const everything = "..."

// rules is the architecture. The first that covers a package decides.
//
// The five faces (server, client, vk, tunnel, discovery) never reach each other:
// each says in small interfaces what it needs, and internal/agent introduces
// them.
var rules = []rule{
	{packages: "peering/..."},
	{packages: "api/...", outside: []string{"k8s.io/api/", "k8s.io/apimachinery/"}},
	{packages: "gen/...", outside: []string{
		"buf.build/gen/go/bufbuild/protovalidate/", "github.com/grpc-ecosystem/grpc-gateway/v2/",
		"google.golang.org/genproto/googleapis/", "google.golang.org/grpc", "google.golang.org/protobuf/",
	}},

	{packages: "internal/version"},
	{packages: "internal/budget"},
	{packages: "internal/notify"},
	{packages: "internal/pake", outside: []string{"github.com/gtank/ristretto255"}},
	{packages: "internal/identity", ours: []string{"peering/..."}, outside: []string{
		"github.com/spiffe/go-spiffe/v2/", "google.golang.org/grpc/credentials", "google.golang.org/grpc/peer",
	}},
	{packages: "internal/identity/identitytest", ours: []string{"internal/identity", "peering/..."}},
	{packages: "internal/wire", ours: []string{"gen/...", "peering/...", "internal/identity"}, outside: []string{
		"google.golang.org/genproto/googleapis/rpc/", "google.golang.org/grpc/codes", "google.golang.org/grpc/encoding", "google.golang.org/grpc/mem",
		"google.golang.org/grpc/status", "google.golang.org/protobuf/",
	}},
	{packages: "internal/wire/wiretest", ours: []string{"gen/...", "internal/identity", "internal/wire", "peering/..."}, outside: []string{"google.golang.org/grpc"}},
	{packages: "internal/session", ours: []string{"peering/...", "internal/accept", "internal/identity", "internal/notify"}, outside: []string{
		"github.com/hashicorp/yamux", "github.com/prometheus/client_golang/prometheus", "github.com/spiffe/go-spiffe/v2/svid/x509svid",
		"google.golang.org/grpc", "golang.org/x/sync/", "golang.org/x/time/rate",
	}},
	{packages: "internal/handback", ours: []string{"api/...", "internal/placement", "internal/podspec", "internal/endpoints", "internal/fencing", "internal/store", "peering/...", "internal/budget", "internal/identity"}, outside: []string{"k8s.io/", "sigs.k8s.io/controller-runtime"}},
	{packages: "internal/placement", ours: []string{"api/...", "peering/...", "internal/podspec", "internal/endpoints", "internal/fencing"}, outside: []string{"k8s.io/"}},
	{packages: "internal/placementserver", ours: []string{"api/...", "peering/...", "internal/notify", "internal/placement", "internal/podspec", "internal/endpoints", "internal/fencing"}, outside: []string{"golang.org/x/net/netutil", "k8s.io/", "sigs.k8s.io/controller-runtime"}},
	{packages: "internal/offloadedpod", ours: []string{"api/...", "peering/..."}, outside: []string{"k8s.io/"}},
	{packages: "internal/leader", ours: []string{"internal/notify", "api/..."}, outside: []string{"k8s.io/", "sigs.k8s.io/controller-runtime/pkg/client"}},
	{packages: "internal/kubeauth", outside: []string{"k8s.io/"}},
	{packages: "internal/accept"},
	{packages: "internal/relay", ours: []string{"internal/accept"}, outside: []string{"golang.org/x/time/rate"}},
	{packages: "internal/carry", ours: []string{"internal/notify", "peering/...", "internal/accept"}, outside: []string{"github.com/prometheus/client_golang/prometheus", "golang.org/x/time/rate"}},
	{packages: "internal/homeapi", ours: []string{"internal/notify", "api/...", "peering/...", "internal/accept", "internal/carry"}, outside: []string{"github.com/prometheus/client_golang/prometheus", "golang.org/x/time/rate", "k8s.io/"}},
	{packages: "internal/datagrams", ours: []string{"internal/notify", "internal/accept"}, outside: []string{"github.com/prometheus/client_golang/prometheus", "golang.org/x/time/rate"}},
	{packages: "internal/intake", outside: []string{"golang.org/x/time/rate", "google.golang.org/grpc"}},
	{packages: "internal/heartbeat", ours: []string{"gen/...", "peering/...", "internal/wire", "internal/identity"}, outside: []string{
		"golang.org/x/time/rate", "google.golang.org/grpc", "google.golang.org/protobuf/",
	}},

	{packages: "server/internal/middleware", ours: []string{"gen/...", "peering/...", "internal/wire", "internal/identity"}, outside: []string{
		"buf.build/go/protovalidate", "github.com/google/uuid", "golang.org/x/time/rate", "google.golang.org/", "k8s.io/apimachinery/",
	}},
	{packages: "server/internal/servertest", ours: []string{"internal/identity", "internal/waittest", "peering/..."}, outside: []string{"go.uber.org/goleak", "google.golang.org/protobuf/"}},
	{
		packages: "server",
		ours: []string{
			"gen/...", "peering/...", "internal/wire", "internal/identity", "internal/heartbeat", "internal/intake", "internal/notify", "server/internal/middleware",
		},
		outside: []string{"buf.build/go/protovalidate", "golang.org/x/sync/", "google.golang.org/", "k8s.io/"},
	},
	{
		packages: "server/admin",
		ours: []string{
			"gen/...", "peering/...", "api/...", "internal/kubeauth", "internal/notify", "internal/wire", "internal/identity", "internal/version",
			"server/internal/middleware",
		},
		outside: []string{
			"github.com/grpc-ecosystem/", "golang.org/x/sync/", "google.golang.org/", "k8s.io/", "sigs.k8s.io/controller-runtime/pkg/client",
		},
	},
	{
		packages: "client",
		ours:     []string{"internal/notify", "gen/...", "peering/...", "internal/wire", "internal/identity", "internal/heartbeat", "internal/pake"},
		outside:  []string{"golang.org/x/sync/", "golang.org/x/time/rate", "google.golang.org/", "k8s.io/"},
	},
	// What home shows of a pod that runs at a provider is decided without a client.
	{packages: "internal/podstatus", ours: []string{"peering/...", "api/...", "internal/endpoints", "internal/fencing", "internal/podspec"}, outside: []string{"k8s.io/api/", "k8s.io/apimachinery/"}},
	{packages: "internal/podstatus/podstatustest", ours: []string{"api/..."}, outside: []string{"k8s.io/api/", "k8s.io/apimachinery/"}},
	{packages: "vk", ours: []string{"peering/...", "api/...", "internal/budget", "internal/endpoints", "internal/fencing", "internal/kubeauth", "internal/losses", "internal/notify", "internal/podspec", "internal/podstatus", "internal/refusals"}, outside: []string{
		"github.com/prometheus/client_model/go", "github.com/virtual-kubelet/virtual-kubelet/", "golang.org/x/sync/", "golang.org/x/time/rate", "k8s.io/", "sigs.k8s.io/",
	}},
	{packages: "internal/podmetrics", ours: []string{"peering/..."}, outside: []string{
		"github.com/prometheus/client_model/go", "golang.org/x/time/rate", "k8s.io/",
	}},
	// The fabric knows nothing of Kubernetes.
	{packages: "internal/cidr"},
	{packages: "internal/clock"},
	{packages: "tunnel/plan", ours: []string{"internal/cidr"}},
	{packages: "tunnel/plan/plantest", ours: []string{"internal/cidr", "tunnel/plan"}},
	{packages: "tunnel/probe", ours: []string{"internal/cidr", "tunnel/plan"}, outside: []string{"golang.org/x/sys/unix"}},
	{packages: "tunnel/firewall", ours: []string{"internal/cidr", "tunnel/plan"}, outside: []string{"github.com/google/nftables", "github.com/mdlayher/netlink", "golang.org/x/sys/unix"}},
	{packages: "tunnel/userspace", ours: []string{"internal/cidr", "tunnel/plan"}, outside: []string{
		"github.com/vishvananda/", "golang.org/x/sys/unix", "golang.zx2c4.com/wireguard",
	}},
	{packages: "tunnel", ours: []string{"internal/notify", "internal/cidr", "internal/sysctl", "tunnel/..."}, outside: []string{
		"github.com/mdlayher/netlink", "github.com/vishvananda/", "golang.org/x/sync/", "golang.org/x/sys/",
		"golang.zx2c4.com/wireguard",
	}},
	// What is wrong on a node is decided without Kubernetes and without the fabric.
	{packages: "internal/sysctl"},
	{packages: "internal/preflight", ours: []string{"internal/sysctl"}, outside: []string{"github.com/google/nftables", "github.com/mdlayher/netlink", "github.com/vishvananda/netlink", "golang.org/x/sys/unix"}},
	// Which names there are is decided without Kubernetes, too.
	{packages: "internal/names", ours: []string{"internal/accept"}, outside: []string{"github.com/miekg/dns", "github.com/prometheus/client_golang/prometheus", "golang.org/x/time/rate"}},
	// Sockets that share a port and a watch on interfaces need the system's own words.
	{packages: "discovery/mdns", ours: []string{"peering/...", "discovery", "internal/notify"}, outside: []string{
		"github.com/miekg/dns", "golang.org/x/net/", "golang.org/x/sys/unix",
	}},
	{packages: "discovery/...", ours: []string{"peering/...", "internal/notify"}, outside: []string{"github.com/miekg/dns", "golang.org/x/net/"}},

	{packages: "internal/endpoints", ours: []string{"api/...", "peering/..."}, outside: []string{"k8s.io/"}},
	// Both halves of a pod: what its home sends, and what a provider takes.
	{packages: "internal/podspec", ours: []string{"api/...", "peering/...", "internal/endpoints", "internal/fencing"}, outside: []string{"k8s.io/"}},
	{packages: "internal/podwatch", ours: []string{"peering/...", "internal/notify"}, outside: []string{"k8s.io/apimachinery/"}},
	{packages: "internal/podstreams", ours: []string{"peering/..."}, outside: []string{"k8s.io/"}},
	{packages: "internal/records", ours: []string{"api/..."}, outside: []string{"k8s.io/", "sigs.k8s.io/controller-runtime"}},
	{packages: "internal/recent", ours: []string{"api/...", "peering/..."}, outside: []string{"k8s.io/apimachinery/"}},
	{packages: "internal/turns", ours: []string{"peering/..."}, outside: []string{"k8s.io/", "sigs.k8s.io/controller-runtime"}},
	{packages: "internal/paced", ours: []string{"api/...", "peering/...", "internal/budget", "internal/turns"}, outside: []string{"golang.org/x/time/rate", "k8s.io/", "sigs.k8s.io/controller-runtime"}},
	{packages: "internal/podprefixes", ours: []string{"api/...", "internal/cidr", "internal/kube"}, outside: []string{"k8s.io/", "sigs.k8s.io/controller-runtime/pkg/client", "sigs.k8s.io/yaml"}},
	{packages: "internal/pages", outside: []string{"k8s.io/", "sigs.k8s.io/controller-runtime"}},
	{packages: "internal/servingcert", ours: []string{"api/..."}, outside: []string{"k8s.io/"}},
	{packages: "internal/limitrange", ours: []string{"api/..."}, outside: []string{"k8s.io/"}},
	{packages: "internal/losses", outside: []string{"k8s.io/"}},
	{packages: "internal/refusals", ours: []string{"peering/..."}},
	{packages: "internal/refused", ours: []string{"api/...", "internal/notify", "internal/refusals", "peering/..."}, outside: []string{"github.com/prometheus/client_golang/prometheus", "k8s.io/"}},
	{packages: "internal/gauges", ours: []string{"api/...", "peering/..."}, outside: []string{"github.com/prometheus/client_golang/prometheus", "k8s.io/api/", "k8s.io/apimachinery/", "sigs.k8s.io/controller-runtime/pkg/client"}},
	{packages: "internal/podsecurity", ours: []string{"api/...", "internal/endpoints", "internal/fencing", "internal/podspec", "peering/..."}, outside: []string{"k8s.io/"}},
	{packages: "internal/stock", ours: []string{"peering/..."}},
	{packages: "internal/ledger", ours: []string{"api/...", "peering/...", "internal/endpoints", "internal/fencing", "internal/podspec"}, outside: []string{"k8s.io/", "sigs.k8s.io/controller-runtime"}},
	{packages: "internal/fencing", ours: []string{"peering/..."}, outside: []string{"golang.org/x/sync/", "golang.org/x/sys/unix", "k8s.io/"}},
	// Both halves of a NetworkPolicy.
	{packages: "internal/netpolicy", ours: []string{"api/...", "peering/...", "internal/cidr", "internal/endpoints", "internal/fencing", "internal/podspec"}, outside: []string{"golang.org/x/time/", "k8s.io/"}},
	// Both halves of a volume: what of it is a provider's and what is home's never meet here.
	{packages: "internal/volumes", ours: []string{"api/...", "peering/...", "internal/refusals", "internal/stock"}, outside: []string{"k8s.io/", "sigs.k8s.io/controller-runtime"}},
	// Both ends of a copy know files and each other, and nothing of Kubernetes.
	{packages: "internal/volumecopy", ours: []string{"internal/notify"}, outside: []string{"golang.org/x/sys/unix"}},
	// What crossed the border is read by internal/wire, wherever it is kept.
	{
		packages: "internal/reflection",
		ours:     []string{"api/...", "peering/...", "internal/endpoints", "internal/fencing", "internal/podspec", "internal/stock", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"k8s.io/", "sigs.k8s.io/controller-runtime/pkg/client"},
	},
	{
		packages: "internal/offload",
		ours:     []string{"internal/offloadedpod", "api/...", "peering/...", "internal/limitrange", "internal/budget", "internal/cidr", "internal/endpoints", "internal/fencing", "internal/ledger", "internal/netpolicy", "internal/notify", "internal/paced", "internal/pages", "internal/podmetrics", "internal/podsecurity", "internal/podspec", "internal/podstatus", "internal/podstreams", "internal/podwatch", "internal/recent", "internal/reflection", "internal/refusals", "internal/stock", "internal/turns", "internal/volumes", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"github.com/go-logr/logr", "golang.org/x/", "k8s.io/", "sigs.k8s.io/"},
	},
	{
		packages: "internal/store",
		ours:     []string{"api/...", "peering/...", "internal/budget", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"k8s.io/", "sigs.k8s.io/controller-runtime/pkg/"},
	},
	// What is agreed on is decided without a client.
	{
		packages: "internal/market",
		ours:     []string{"api/...", "peering/...", "internal/store", "internal/budget", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/component-helpers/resource", "k8s.io/klog/v2"},
	},
	{packages: "internal/kube", ours: []string{"api/..."}, outside: []string{"k8s.io/", "sigs.k8s.io/controller-runtime/pkg/", "sigs.k8s.io/mcs-api/pkg/apis"}},
	{
		packages: "internal/provider",
		ours:     []string{"api/...", "peering/...", "internal/kube", "internal/market", "internal/notify", "internal/store", "internal/budget", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"k8s.io/", "sigs.k8s.io/controller-runtime/pkg/"},
	},
	// How trust begins, what discovery finds, and who is peered with by policy.
	{
		packages: "internal/trust",
		ours:     []string{"api/...", "peering/...", "internal/store", "internal/budget", "internal/wire", "gen/...", "internal/identity", "internal/pake"},
		outside:  []string{"golang.org/x/", "k8s.io/", "sigs.k8s.io/"},
	},
	{
		packages: "internal/sightings",
		ours:     []string{"internal/notify", "api/...", "peering/...", "internal/trust", "internal/store", "internal/budget", "internal/wire", "gen/...", "internal/identity", "internal/pake"},
		outside:  []string{"k8s.io/", "sigs.k8s.io/"},
	},
	{
		packages: "internal/automatic",
		ours:     []string{"api/...", "peering/...", "internal/notify", "internal/trust", "internal/store", "internal/budget", "internal/wire", "gen/...", "internal/identity", "internal/pake"},
		outside:  []string{"golang.org/x/time/rate", "k8s.io/", "sigs.k8s.io/"},
	},
	// The chart's own policies, after an install.
	{packages: "internal/chartpolicies", ours: []string{"api/...", "internal/notify"}, outside: []string{"k8s.io/", "sigs.k8s.io/controller-runtime/pkg/client", "sigs.k8s.io/yaml"}},
	// Foreign clusters as other tools know clusters.
	{packages: "internal/profiles", ours: []string{"api/..."}, outside: []string{"k8s.io/apimachinery/", "sigs.k8s.io/controller-runtime"}},
	// Services of each other without offloading.
	{
		packages: "internal/services",
		ours:     []string{"api/...", "peering/...", "internal/endpoints", "internal/kube", "internal/notify", "internal/store", "internal/budget", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"k8s.io/", "sigs.k8s.io/controller-runtime"},
	},
	// Services that are one in several clusters.
	{
		packages: "internal/clusterset",
		ours: []string{
			"api/...", "peering/...", "internal/endpoints", "internal/kube", "internal/market", "internal/notify", "internal/services", "internal/store", "internal/budget", "internal/wire", "gen/...",
			"internal/identity",
		},
		outside: []string{"k8s.io/", "sigs.k8s.io/controller-runtime", "sigs.k8s.io/mcs-api/pkg/apis"},
	},
	{packages: "internal/aliases", ours: []string{"internal/cidr"}},
	{packages: "internal/aliases/stored", ours: []string{"api/...", "internal/aliases", "internal/cidr"}, outside: []string{"k8s.io/"}},
	// What a peer may reach here.
	{
		packages: "internal/allow",
		ours:     []string{"api/...", "peering/...", "internal/kube", "internal/store", "internal/budget", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"k8s.io/", "sigs.k8s.io/controller-runtime"},
	},
	// And what of it by which contract.
	{
		packages: "internal/exposure",
		ours:     []string{"api/...", "peering/...", "internal/allow", "internal/endpoints", "internal/kube", "internal/notify", "internal/services", "internal/store", "internal/budget", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"k8s.io/"},
	},
	// What caches keep.
	{
		packages: "internal/slim",
		ours:     []string{"api/...", "peering/...", "internal/market", "internal/store", "internal/budget", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"k8s.io/"},
	},
	// What is used of contracts, and whether two counts of that agree.
	{
		packages: "internal/usage",
		ours:     []string{"api/...", "peering/...", "internal/limitrange", "internal/market", "internal/store", "internal/budget", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"k8s.io/"},
	},
	// Which namespaces are offloaded.
	{
		packages: "internal/namespaces",
		ours:     []string{"api/...", "peering/...", "internal/kube", "internal/placement", "internal/podspec", "internal/endpoints", "internal/fencing", "internal/store", "internal/budget", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"k8s.io/", "sigs.k8s.io/controller-runtime"},
	},
	// Which peers reach each other through this cluster.
	{packages: "internal/transit", ours: []string{"api/...", "peering/..."}, outside: []string{"k8s.io/apimachinery/"}},
	// And what a provider opens and says so that pods reach each other without it.
	{
		packages: "internal/direct",
		ours:     []string{"api/...", "peering/...", "internal/allow", "internal/endpoints", "internal/kube", "internal/store", "internal/transit", "internal/budget", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"sigs.k8s.io/controller-runtime"},
	},
	// Which preshared keys tunnels have.
	{
		packages: "internal/presharedkeys",
		ours:     []string{"api/...", "peering/...", "internal/gateways", "internal/kube", "internal/store", "internal/budget", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"k8s.io/", "sigs.k8s.io/controller-runtime"},
	},
	// Which nodes are gateways, and where other clusters dial them.
	{
		packages: "internal/gateways",
		ours:     []string{"api/...", "peering/...", "internal/kube", "internal/store", "internal/budget", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"k8s.io/", "sigs.k8s.io/controller-runtime"},
	},
	{
		packages: "internal/controller",
		ours: []string{
			"api/...", "peering/...", "internal/limitrange", "internal/aliases/...", "internal/allow", "internal/cidr", "internal/gateways", "internal/kube", "internal/market", "internal/placement", "internal/store", "internal/trust", "internal/usage", "internal/budget", "internal/wire", "gen/...", "internal/identity",
			"internal/pake", "internal/presharedkeys", "internal/transit",
		},
		outside: []string{"github.com/go-logr/logr", "golang.org/x/", "k8s.io/", "sigs.k8s.io/"},
	},
	// States cross sessions.
	{
		packages: "internal/exchange",
		ours: []string{
			"internal/controller", "internal/heartbeat", "internal/notify", "api/...", "peering/...", "internal/limitrange", "internal/aliases/...", "internal/allow", "internal/cidr", "internal/gateways", "internal/kube", "internal/market", "internal/placement", "internal/store", "internal/trust", "internal/usage", "internal/budget", "internal/wire", "gen/...", "internal/identity", "internal/pake", "internal/presharedkeys", "internal/transit",
		},
		outside: []string{"golang.org/x/sync/", "google.golang.org/protobuf/proto", "github.com/go-logr/logr", "k8s.io/", "sigs.k8s.io/"},
	},

	// Processes, and parts of the agent, that bring two of the faces or one and Kubernetes
	// together. None of them reaches another but by what is listed.
	{
		packages: "internal/resolver",
		ours: []string{
			"internal/offloadedpod", "api/...", "peering/...", "internal/limitrange", "discovery", "internal/accept", "internal/kube", "internal/names", "internal/cidr", "internal/netpolicy", "internal/offload", "internal/paced", "internal/pages", "internal/podmetrics", "internal/podsecurity", "internal/podspec", "internal/podstatus", "internal/podstreams", "internal/podwatch", "internal/recent", "internal/reflection", "internal/refusals", "internal/turns", "internal/fencing", "internal/ledger", "internal/endpoints", "internal/stock", "internal/volumes", "internal/budget", "internal/notify", "internal/wire", "gen/...", "internal/identity",
		},
		outside: []string{everything},
	},
	{
		packages: "internal/browse",
		ours: []string{
			"api/...", "peering/...", "discovery/...", "internal/notify", "internal/sightings", "internal/trust", "internal/store", "internal/budget", "internal/wire", "gen/...",
			"internal/identity", "internal/pake",
		},
		outside: []string{"k8s.io/apimachinery/", "sigs.k8s.io/controller-runtime/pkg/"},
	},
	{
		packages: "internal/fabric",
		ours: []string{
			"api/...", "peering/...", "tunnel/...", "discovery/...", "internal/accept", "internal/browse", "internal/cidr", "internal/datagrams", "internal/kube", "internal/kubeauth", "internal/notify", "internal/preflight", "internal/relay", "internal/sightings", "internal/sysctl", "internal/trust", "internal/store",
			"internal/budget", "internal/wire", "gen/...", "internal/identity", "internal/pake",
		},
		outside: []string{"github.com/go-logr/logr", "github.com/prometheus/client_golang/prometheus", "golang.org/x/", "k8s.io/", "sigs.k8s.io/"},
	},
	{
		packages: "internal/dnsupdate",
		ours: []string{
			"peering/...", "discovery/...", "internal/notify", "server/admin", "server/internal/middleware", "api/...", "gen/...", "internal/kubeauth", "internal/wire", "internal/identity", "internal/version",
		},
		outside: []string{"github.com/miekg/dns", "k8s.io/", "sigs.k8s.io/controller-runtime/pkg/client"},
	},
	{packages: "internal/cleanup", ours: []string{everything}, outside: []string{"k8s.io/", "sigs.k8s.io/controller-runtime/pkg/client", "sigs.k8s.io/mcs-api/pkg/apis"}},

	// Where all meet.
	{packages: "internal/agent", ours: []string{everything}, outside: []string{everything}},
	{packages: "cmd/entented", ours: []string{everything}, outside: []string{everything}},
	// The CLI is a user of the admin API: nothing of the agent is in it.
	{
		packages: "cmd/entente",
		ours: []string{
			"cmd/entente/internal/...",
			"client", "api/...", "gen/...", "peering/...", "discovery/...", "internal/notify", "internal/wire", "internal/identity", "internal/heartbeat", "internal/pake",
			"internal/podstreams", "internal/version", "internal/volumecopy",
		},
		outside: []string{everything},
	},

	// What it prints and what it verifies offline knows of no cluster.
	{packages: "cmd/entente/internal/amendment", ours: []string{
		"api/...", "cmd/entente/internal/exit", "cmd/entente/internal/flags", "cmd/entente/internal/format", "cmd/entente/internal/printer", "client", "gen/...", "peering/...",
		"internal/notify", "internal/wire", "internal/identity", "internal/heartbeat", "internal/pake",
	}},
	{packages: "cmd/entente/internal/flags", ours: []string{"gen/...", "peering/..."}, outside: []string{"github.com/spf13/", "google.golang.org/protobuf/"}},
	{packages: "cmd/entente/internal/printer", ours: []string{"cmd/entente/internal/flags", "gen/...", "peering/..."}, outside: []string{
		"github.com/spf13/cobra", "google.golang.org/protobuf/", "k8s.io/client-go/util/jsonpath", "sigs.k8s.io/yaml",
	}},
	{packages: "cmd/entente/internal/format", ours: []string{
		"api/...", "cmd/entente/internal/flags", "cmd/entente/internal/printer", "gen/...", "peering/...", "internal/wire", "internal/identity",
	}, outside: []string{"google.golang.org/protobuf/", "k8s.io/apimachinery/"}},
	{packages: "cmd/entente/internal/doctor", ours: []string{
		"api/...", "cmd/entente/internal/flags", "cmd/entente/internal/printer", "client", "gen/...", "peering/...", "internal/notify", "internal/wire", "internal/identity",
		"internal/heartbeat", "internal/pake",
	}, outside: []string{"k8s.io/"}},
	// It asks the API server, and no agent.
	{packages: "cmd/entente/internal/storage", ours: []string{"api/..."}, outside: []string{"k8s.io/"}},
	{packages: "cmd/entente/internal/podexec", ours: []string{"internal/podstreams", "peering/..."}, outside: []string{"k8s.io/"}},
	{packages: "cmd/entente/internal/move", ours: []string{"internal/notify", "api/...", "cmd/entente/internal/storage", "internal/volumecopy"}, outside: []string{"k8s.io/"}},
	// Responses of agents are printed with what the client knows of them.
	{packages: "cmd/entente/internal/exit", ours: []string{
		"internal/notify", "cmd/entente/internal/flags", "cmd/entente/internal/printer", "client", "gen/...", "peering/...", "internal/wire", "internal/identity", "internal/heartbeat", "internal/pake",
	}},
	{packages: "cmd/entente/internal/progress", ours: []string{
		"internal/notify", "cmd/entente/internal/exit", "cmd/entente/internal/flags", "cmd/entente/internal/printer", "client", "gen/...", "peering/...", "internal/wire", "internal/identity",
		"internal/heartbeat", "internal/pake",
	}, outside: []string{"google.golang.org/grpc"}},
	{packages: "cmd/entente/internal/places", ours: []string{
		"api/...", "cmd/entente/internal/exit", "cmd/entente/internal/flags", "cmd/entente/internal/printer", "client", "discovery/...", "gen/...", "peering/...", "internal/notify",
		"internal/wire", "internal/identity", "internal/heartbeat", "internal/pake",
	}, outside: []string{"k8s.io/"}},
	{packages: "cmd/entente/internal/parameters", ours: []string{"api/...", "gen/...", "peering/..."}, outside: []string{"sigs.k8s.io/yaml"}},
	{packages: "cmd/entente/internal/evidence", ours: []string{
		"api/...", "cmd/entente/internal/...", "gen/...", "peering/...", "internal/wire", "internal/identity",
	}, outside: []string{"k8s.io/apimachinery/"}},

	// Tools of the house.
	{packages: "internal/archtest"},
	{packages: "internal/charttest", outside: []string{"k8s.io/client-go/rest", "sigs.k8s.io/controller-runtime/pkg/envtest"}},
	{packages: "internal/fixture", ours: []string{"api/..."}, outside: []string{"k8s.io/api/", "k8s.io/apimachinery/"}},
	{
		packages: "internal/peertest",
		ours:     []string{"api/...", "peering/...", "internal/store", "internal/budget", "internal/wire", "gen/...", "internal/identity"},
		outside:  []string{"k8s.io/", "sigs.k8s.io/controller-runtime/pkg/client"},
	},
	{packages: "internal/waittest"},
	{packages: "internal/namedtest", outside: []string{"github.com/miekg/dns"}},
	{packages: "internal/image", outside: []string{"github.com/google/go-containerregistry/"}},
}

// pkg is what the test needs of `go list`.
type pkg struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
}

func TestPackagesDependOnlyOnTheTable(t *testing.T) {
	t.Parallel()
	packages := list(t)
	if len(packages) < 5 {
		t.Fatalf("go list saw %d packages of %s; the test would prove nothing", len(packages), module)
	}
	for _, p := range packages {
		for _, problem := range check(rules, p) {
			t.Error(problem)
		}
	}
}

// check returns what is wrong with a package of this module.
func check(rules []rule, p pkg) []string {
	path := inside(p.ImportPath)
	r, ok := find(rules, path)
	if !ok {
		return []string{path + ": no rule covers it; give it a place in the table"}
	}
	var problems []string
	for _, dep := range p.Deps {
		if to := inside(dep); to != "" && !covers(r.packages, to) && !slices.ContainsFunc(r.ours, func(s string) bool { return covers(s, to) }) {
			problems = append(problems, fmt.Sprintf("%s: depends on %s, which the table does not allow%s", path, to, direct(p, dep)))
		}
	}
	for _, dep := range p.Imports {
		if inside(dep) == "" && !standard(dep) && !slices.ContainsFunc(r.outside, func(s string) bool { return s == everything || strings.HasPrefix(dep, s) }) {
			problems = append(problems, fmt.Sprintf("%s: imports %s, which the table does not allow", path, dep))
		}
	}
	return problems
}

func direct(p pkg, dep string) string {
	if slices.Contains(p.Imports, dep) {
		return ""
	}
	return " (through another package)"
}

// standard reports whether a path is in the standard library: others begin with a
// host name.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// inside returns the path in the module, or "" for a package of another.
func inside(path string) string {
	if rest, ok := strings.CutPrefix(path, module+"/"); ok {
		return rest
	}
	return ""
}

func covers(pattern, path string) bool {
	if pattern == everything {
		return true
	}
	root, tree := strings.CutSuffix(pattern, "/...")
	return path == root || tree && strings.HasPrefix(path, root+"/")
}

func find(rules []rule, path string) (rule, bool) {
	i := slices.IndexFunc(rules, func(r rule) bool { return covers(r.packages, path) })
	if i < 0 {
		return rule{}, false
	}
	return rules[i], true
}

// list returns the packages of the module as they are built for Linux, where all
// of it is built.
func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps", "-json=ImportPath,Standard,Imports,Deps", "./...")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var packages []pkg
	for dec := json.NewDecoder(out); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("read go list: %v\n%s", err, &stderr)
		}
		if inside(p.ImportPath) != "" {
			packages = append(packages, p)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	return packages
}

func TestImportCheckFindsViolations(t *testing.T) {
	t.Parallel()
	rules := []rule{
		{packages: "core"},
		{packages: "left", ours: []string{"core"}, outside: []string{"example.com/net"}},
		{packages: "right/...", ours: []string{everything}, outside: []string{everything}},
	}
	in := func(names ...string) (paths []string) {
		for _, n := range names {
			paths = append(paths, module+"/"+n)
		}
		return paths
	}
	for name, c := range map[string]struct {
		pkg  pkg
		want string
	}{
		"an allowed package":                   {pkg: pkg{ImportPath: module + "/left", Imports: in("core"), Deps: in("core")}},
		"a package without a rule":             {pkg: pkg{ImportPath: module + "/new"}, want: "no rule covers it"},
		"a sideways import":                    {pkg: pkg{ImportPath: module + "/left", Imports: in("right"), Deps: in("right")}, want: "depends on right"},
		"a sideways import through another":    {pkg: pkg{ImportPath: module + "/left", Imports: in("core"), Deps: in("core", "right/deep")}, want: "through another package"},
		"another module":                       {pkg: pkg{ImportPath: module + "/left", Imports: []string{"example.com/other"}}, want: "imports example.com/other"},
		"an allowed module":                    {pkg: pkg{ImportPath: module + "/left", Imports: []string{"example.com/net/x"}}},
		"another module in the core":           {pkg: pkg{ImportPath: module + "/core", Imports: []string{"example.com/net"}}, want: "imports example.com/net"},
		"the standard library":                 {pkg: pkg{ImportPath: module + "/core", Imports: []string{"crypto/x509", "fmt"}, Deps: []string{"unsafe"}}},
		"where everything is allowed":          {pkg: pkg{ImportPath: module + "/right", Imports: append(in("left"), "example.com/other"), Deps: in("left")}},
		"a folder below one that has a tree":   {pkg: pkg{ImportPath: module + "/right/deep", Deps: in("left")}},
		"a folder below one that has no tree":  {pkg: pkg{ImportPath: module + "/left/deep"}, want: "no rule covers it"},
		"a name that begins like another name": {pkg: pkg{ImportPath: module + "/corestuff"}, want: "no rule covers it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(check(rules, c.pkg), "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q in it", got, c.want)
			}
		})
	}
}

func TestFacesAreKeptApart(t *testing.T) {
	t.Parallel()
	faces := []string{"server", "client", "vk", "tunnel", "discovery"}
	for _, from := range faces {
		r, ok := find(rules, from)
		if !ok {
			t.Fatalf("no rule for %s", from)
		}
		for _, to := range append(faces, "tunnel/plan", "tunnel/probe", "tunnel/firewall", "tunnel/userspace", "internal/agent", "internal/offload", "internal/controller", "internal/automatic", "internal/market", "internal/provider", "internal/store") {
			if from != to && !strings.HasPrefix(to, from+"/") && slices.ContainsFunc(r.ours, func(s string) bool { return covers(s, to) }) {
				t.Errorf("the table lets %s depend on %s", from, to)
			}
		}
	}
}
