package amendment

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func TestARepeatedRequestDiffersByWhatItNames(t *testing.T) {
	t.Parallel()
	eur := func(amount string) *ententev1.Money { return &ententev1.Money{Currency: "EUR", Amount: amount} }
	is := &ententev1.Peering{
		Resources: list("cpu", "500m", "memory", "8Gi"), Duration: durationpb.New(time.Hour), PriceCeiling: eur("0.5"), NoRenewal: true, NoNetwork: true, Pool: "gpu",
		NodeSelector: map[string]string{"zone": "a"}, StorageClasses: []string{"fast", "slow"}, RuntimeClasses: []string{"gvisor"},
	}
	same := &ententev1.CreatePeeringRequest{
		Resources: list("cpu", "0.5", "memory", "8192Mi"), Duration: durationpb.New(time.Hour), PriceCeiling: eur("0.5"), NoRenewal: true, NoNetwork: true, Pool: "gpu",
		NodeSelector: map[string]string{"zone": "a"}, StorageClasses: []string{"slow", "fast"}, RuntimeClasses: []string{"gvisor"},
	}
	for name, named := range map[string]*ententev1.CreatePeeringRequest{"nothing": {}, "one amount": {Resources: list("memory", "8Gi")}, "all of it": same} {
		if Differs(named, is) {
			t.Errorf("%s: it differs", name)
		}
	}
	for name, named := range map[string]*ententev1.CreatePeeringRequest{
		"an amount":          {Resources: list("cpu", "1", "memory", "8Gi")},
		"another resource":   {Resources: list("pods", "5")},
		"a duration":         {Duration: durationpb.New(2 * time.Hour)},
		"a price ceiling":    {PriceCeiling: eur("0.6")},
		"a pool":             {Pool: "spot"},
		"a node selector":    {NodeSelector: map[string]string{"zone": "b"}},
		"a storage class":    {StorageClasses: []string{"fast"}},
		"another runtime":    {RuntimeClasses: []string{"kata"}},
		"without a renewal":  {NoRenewal: true},
		"without the tunnel": {NoNetwork: true},
	} {
		of := is
		if named.GetNoRenewal() || named.GetNoNetwork() {
			of = &ententev1.Peering{}
		}
		if !Differs(named, of) {
			t.Errorf("%s: it does not differ", name)
		}
	}
}
