package neighbours

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/mcs-api/config/crd"

	. "github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// Namespaces of the sites: shop is offloaded; bank's Service is imported as till's; fair is shared by
// both clusters, as is what has its label.
const (
	shop, bank, till, fair = "shop", "bank", "till", "fair"
	sharedKey, sharedValue = "shared", "fair"
)

var theStage = &Installed{
	Config: Config{Lab: "neighbours", Values: []string{
		"multiclusterServices.enabled=true",
		"policy.percentOfFree=80", "policy.networkPolicies=Allowed",
		"policy.clusterSet.namespaceSelector.matchLabels." + sharedKey + "=" + sharedValue,
		"policy.services[0].namespace=" + bank, "policy.services[0].names={accounts}",
	}},
	Patience: 40 * time.Minute, // what is built first takes most of it
}

func TestMain(m *testing.M) { os.Exit(theStage.Main(m)) }

// peered returns two clusters of which home uses the other, and the virtual node's name. Both know the
// kinds of the Multi-Cluster Services API.
func peered(t *testing.T) (ctx context.Context, w *World, node string) {
	t.Helper()
	only.Matrix(t, "what others wrote is built first, which takes long")
	ctx, w = theStage.On(t)
	OK(t, w.Each(ctx, func(ctx context.Context, s *Side) error {
		return apply(ctx, t, s, string(crd.ServiceExportCRD), string(crd.ServiceImportCRD))
	}))
	n, err := w.Peer(ctx)
	OK(t, err)
	return ctx, w, n.Name
}

// apply applies manifests.
func apply(ctx context.Context, t *testing.T, s *Side, manifests ...string) error {
	t.Helper()
	_, err := s.Kubectl(ctx, "apply", "--server-side", "-f", written(t, manifests...))
	return err
}

// written writes manifests to a file.
func written(t *testing.T, manifests ...string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "manifests.yaml")
	OK(t, os.WriteFile(file, []byte(strings.Join(manifests, "\n---\n")), 0o600))
	return file
}

// nodeAddress is where the Internet reaches a cluster's node.
func nodeAddress(s *Side) netip.Addr { return s.Plan.Control().Address }
