package dnssd

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/entente-dev/entente/peering"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	idA = peering.ClusterID("abcdefghijklmnopqrstuvwxyz234567")
	idB = peering.ClusterID("bbcdefghijklmnopqrstuvwxyz234567")
)
