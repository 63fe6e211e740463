package wire

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/peeringtest"
)

// values compares the values of package peering.
var values = cmp.Options{
	cmp.Comparer(func(a, b peering.Quantity) bool { return a == b }),
	cmp.Comparer(func(a, b peering.Decimal) bool { return a == b }),
}

var decimal = peeringtest.Decimal

func amounts(t testing.TB, m map[string]string) peering.Resources {
	t.Helper()
	r, err := peering.ParseResources(m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func fullAsk(t testing.TB) peering.Ask {
	t.Helper()
	return peering.Ask{
		RequestID: "0b3e1f5c-1", ContractID: "c-1", Resources: amounts(t, map[string]string{"cpu": "500m", "memory": "8Gi", "pods": "10"}),
		Duration: time.Hour, Network: true, PriceCeiling: peering.Money{Currency: "EUR", Amount: decimal(t, "0.42")},
		Pool: "gpu", NodeSelector: map[string]string{"kubernetes.io/arch": "arm64", "gpu": "a100"}, StorageClasses: []string{"fast", "slow"}, RuntimeClasses: []string{"gvisor"},
	}
}

func fullAdvertisement(t testing.TB) peering.Advertisement {
	t.Helper()
	return peering.Advertisement{
		ContractID: "c-1", RequestID: "r-1", Revision: 2, PreviousHash: peering.Hash{1, 2}, ValidUntil: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC),
		Grant: peering.Grant{
			Duration: 24 * time.Hour, StorageClasses: []string{"fast"},
			Clauses: peering.Clauses{
				Resources: amounts(t, map[string]string{"cpu": "1500m", "memory": "8Gi", "pods": "10"}), Network: true, PodSecurity: peering.PodSecurityBaseline, NodeLabels: map[string]string{"kubernetes.io/arch": "arm64"}, Price: peering.PriceList{Currency: "EUR", PerHour: map[string]peering.Decimal{"cpu": decimal(t, "0.025"), "memory": decimal(t, "0.004")}}, Renewable: true, Notice: time.Hour, StatementPeriod: time.Minute, Exposure: peering.ExposureOffloaded, Pool: "gpu", NodeSelector: map[string]string{"gpu": "a100"}, RuntimeClasses: []string{"gvisor", "kata"},
				LimitRange: peering.LimitRange{DefaultRequest: amounts(t, map[string]string{"cpu": "100m", "memory": "0"}), Default: amounts(t, map[string]string{"memory": "1Gi"}), PodMax: amounts(t, map[string]string{"cpu": "4"})},
			},
		},
	}
}

func fullOffer(t testing.TB) peering.Offer {
	t.Helper()
	return peering.Offer{
		Available: true, Message: "an administrator approves each request", Resources: amounts(t, map[string]string{"cpu": "8", "memory": "32Gi", "pods": "110"}),
		Price:      peering.PriceList{Currency: "EUR", PerHour: map[string]peering.Decimal{"cpu": decimal(t, "0.025")}},
		NodeLabels: map[string]string{"kubernetes.io/os": "linux"}, Architectures: []string{"amd64", "arm64"}, StorageClasses: []string{"fast"}, Duration: time.Hour,
		Pools: []peering.OfferedPool{
			{
				Name: "gpu", Resources: amounts(t, map[string]string{"cpu": "4", "nvidia.com/gpu": "2"}), NodeLabels: map[string]string{"kind": "gpu"},
				Price: peering.PriceList{Currency: "EUR", PerHour: map[string]peering.Decimal{"nvidia.com/gpu": decimal(t, "2")}},
			},
			{Name: "spot", Resources: peering.Resources{}},
		},
	}
}

func TestAsksCrossUnchanged(t *testing.T) {
	t.Parallel()
	for _, ask := range []peering.Ask{fullAsk(t), {RequestID: "r", Resources: peering.Resources{}}} {
		got, err := AskFrom(AskTo(ask))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(ask, got, values); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

func TestAdvertisementsCrossUnchanged(t *testing.T) {
	t.Parallel()
	plain := fullAdvertisement(t)
	plain.Revision, plain.PreviousHash = 1, peering.Hash{}
	plain.Grant.Price, plain.Grant.NodeSelector, plain.Grant.RuntimeClasses, plain.Grant.StorageClasses = peering.PriceList{}, nil, nil, nil
	plain.Grant.LimitRange = peering.LimitRange{}
	plain.Grant.Notice, plain.Grant.StatementPeriod = 0, 0
	for _, ad := range []peering.Advertisement{fullAdvertisement(t), plain} {
		m := AdvertisementTo(ad)
		got, err := AdvertisementFrom(m, false)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(ad, got, values); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if _, err := AdvertisementFrom(m, true); ReasonOf(err) != peering.ReasonRequestInvalid {
			t.Errorf("what can be signed is taken for a preview: %v", err)
		}
		ad.ContractID, m.ContractId = "", ""
		if got, err = AdvertisementFrom(m, true); err != nil || cmp.Diff(ad, got, values) != "" {
			t.Errorf("a preview is read as %+v, %v", got, err)
		}
	}
	if got := AdvertisementTo(fullAdvertisement(t)).GetHourlyPrice(); got.GetCurrency() != "EUR" || got.GetAmount() != "0.0695" {
		t.Errorf("1.5 cores at 0.025 and 8 GiB at 0.004 are %v an hour", got)
	}
}

// refused checks that reading fails with a violation of a field.
func refused(t *testing.T, err error, field string) {
	t.Helper()
	var e *peering.Error
	if !errors.As(err, &e) || e.Reason != peering.ReasonRequestInvalid || len(e.Violations) != 1 || !strings.HasPrefix(e.Violations[0].Field, field) {
		t.Fatalf("got %v, want a violation of %s", err, field)
	}
	if text := e.Violations[0].Message; len(text) > peering.MaxMessageLen || peering.Text(text, peering.MaxMessageLen) != text {
		t.Errorf("the violation would draw on a terminal: %q", text)
	}
	if got := ReasonOf(Response(err)); got != peering.ReasonResponseInvalid {
		t.Errorf("as an answer it is %s", got)
	}
}

func many(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("n%d", i))
	}
	return out
}

func manyLabels(n int) map[string]string {
	out := map[string]string{}
	for _, s := range many(n) {
		out[s] = ""
	}
	return out
}

func TestAsksThatAreRefused(t *testing.T) {
	t.Parallel()
	if _, err := AskFrom(nil); ReasonOf(err) != peering.ReasonRequestInvalid {
		t.Errorf("no ask: %v", err)
	}
	for name, tc := range map[string]struct {
		change func(*ententev1.PeeringRequest)
		field  string
	}{
		"no request ID":                           {func(m *ententev1.PeeringRequest) { m.RequestId = "" }, "request.request_id"},
		"a request ID with a slash":               {func(m *ententev1.PeeringRequest) { m.RequestId = "../x" }, "request.request_id"},
		"a request ID that is too long":           {func(m *ententev1.PeeringRequest) { m.RequestId = strings.Repeat("a", 65) }, "request.request_id"},
		"a contract ID that can name no object":   {func(m *ententev1.PeeringRequest) { m.ContractId = "A" }, "request.contract_id"},
		"less than nothing":                       {func(m *ententev1.PeeringRequest) { m.Resources.Amounts["cpu"] = "-1" }, "request.resources"},
		"an amount that takes hours to read":      {func(m *ententev1.PeeringRequest) { m.Resources.Amounts["cpu"] = "1e999999999" }, "request.resources"},
		"a resource with a malformed name":        {func(m *ententev1.PeeringRequest) { m.Resources.Amounts["a\x1b[2J"] = "1" }, "request.resources"},
		"more resources than there are":           {func(m *ententev1.PeeringRequest) { m.Resources.Amounts = many2(65) }, "request.resources"},
		"a duration below zero":                   {func(m *ententev1.PeeringRequest) { m.Duration = durationpb.New(-1) }, "request.duration"},
		"a duration beyond ten years":             {func(m *ententev1.PeeringRequest) { m.Duration = durationpb.New(peering.MaxDuration + 1) }, "request.duration"},
		"a duration that no arithmetic survives":  {func(m *ententev1.PeeringRequest) { m.Duration = &durationpb.Duration{Seconds: 1 << 62} }, "request.duration"},
		"a price with floating point":             {func(m *ententev1.PeeringRequest) { m.PriceCeiling.Amount = "1e3" }, "request.price_ceiling.amount"},
		"a price with ten places":                 {func(m *ententev1.PeeringRequest) { m.PriceCeiling.Amount = "0.0000000001" }, "request.price_ceiling.amount"},
		"a price below zero":                      {func(m *ententev1.PeeringRequest) { m.PriceCeiling.Amount = "-1" }, "request.price_ceiling.amount"},
		"a price written in two ways":             {func(m *ententev1.PeeringRequest) { m.PriceCeiling.Amount = "1.50" }, "request.price_ceiling.amount"},
		"a malformed currency":                    {func(m *ententev1.PeeringRequest) { m.PriceCeiling.Currency = "€" }, "request.price_ceiling.currency"},
		"a ceiling of nothing in no currency":     {func(m *ententev1.PeeringRequest) { m.PriceCeiling = &ententev1.Money{Amount: "0"} }, "request.price_ceiling.currency"},
		"a node label that no node has":           {func(m *ententev1.PeeringRequest) { m.NodeSelector["a b"] = "" }, "request.node_selector"},
		"a node label's value that no node has":   {func(m *ententev1.PeeringRequest) { m.NodeSelector["a"] = "x y" }, "request.node_selector"},
		"more node labels than may be asked for":  {func(m *ententev1.PeeringRequest) { m.NodeSelector = manyLabels(33) }, "request.node_selector"},
		"a storage class with a path":             {func(m *ententev1.PeeringRequest) { m.StorageClasses = []string{"../fast"} }, "request.storage_classes"},
		"a storage class twice":                   {func(m *ententev1.PeeringRequest) { m.StorageClasses = []string{"b", "a", "b"} }, "request.storage_classes"},
		"more storage classes than may be asked":  {func(m *ententev1.PeeringRequest) { m.StorageClasses = many(17) }, "request.storage_classes"},
		"a pool that shouts":                      {func(m *ententev1.PeeringRequest) { m.Pool = "GPU" }, "request.pool"},
		"a pool with a long name":                 {func(m *ententev1.PeeringRequest) { m.Pool = strings.Repeat("a", 33) }, "request.pool"},
		"a runtime class without a name":          {func(m *ententev1.PeeringRequest) { m.RuntimeClasses = []string{""} }, "request.runtime_classes"},
		"a runtime class that is longer than any": {func(m *ententev1.PeeringRequest) { m.RuntimeClasses = []string{strings.Repeat("a", 254)} }, "request.runtime_classes"},
		"more runtime classes than may be asked":  {func(m *ententev1.PeeringRequest) { m.RuntimeClasses = many(17) }, "request.runtime_classes"},
		"a runtime class that shouts":             {func(m *ententev1.PeeringRequest) { m.RuntimeClasses = []string{"GVisor"} }, "request.runtime_classes"},
		"a runtime class with control characters": {func(m *ententev1.PeeringRequest) { m.RuntimeClasses = []string{"a\x00"} }, "request.runtime_classes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := AskTo(fullAsk(t))
			tc.change(m)
			_, err := AskFrom(m)
			refused(t, err, tc.field)
		})
	}
}

func many2(n int) map[string]string {
	out := map[string]string{}
	for _, s := range many(n) {
		out[s] = "1"
	}
	return out
}

func TestClassesAreReadInAnyOrder(t *testing.T) {
	t.Parallel()
	m := AskTo(fullAsk(t))
	m.StorageClasses = []string{"slow", "fast"}
	got, err := AskFrom(m)
	if err != nil || !slices.Equal(got.StorageClasses, []string{"fast", "slow"}) {
		t.Errorf("read %v, %v", got.StorageClasses, err)
	}
}

func TestAdvertisementsThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*ententev1.Advertisement)
		field  string
	}{
		"none":                                  {func(m *ententev1.Advertisement) { proto.Reset(m) }, "advertisement.contract_id"},
		"one that offers nothing":               {func(m *ententev1.Advertisement) { m.Resources = nil }, "advertisement.resources"},
		"one with a negative amount":            {func(m *ententev1.Advertisement) { m.Resources.Amounts["cpu"] = "-1" }, "advertisement.resources"},
		"one without a duration":                {func(m *ententev1.Advertisement) { m.Duration = nil }, "advertisement.duration"},
		"one for half a second":                 {func(m *ententev1.Advertisement) { m.Duration = durationpb.New(time.Second / 2) }, "advertisement.duration"},
		"one for longer than anything lasts":    {func(m *ententev1.Advertisement) { m.Duration = durationpb.New(peering.MaxDuration + 1) }, "advertisement.duration"},
		"one that never lapses":                 {func(m *ententev1.Advertisement) { m.ValidUntil = nil }, "advertisement.valid_until"},
		"one that expires beyond the year 9999": {func(m *ententev1.Advertisement) { m.ValidUntil = &timestamppb.Timestamp{Seconds: 1 << 60} }, "advertisement.valid_until"},
		"one with a label that no node takes":   {func(m *ententev1.Advertisement) { m.NodeLabels = map[string]string{"a b": "c"} }, "advertisement.node_labels"},
		"one with more labels than a node":      {func(m *ententev1.Advertisement) { m.NodeLabels = manyLabels(65) }, "advertisement.node_labels"},
		"one whose ID cannot name an object":    {func(m *ententev1.Advertisement) { m.ContractId = "A/B" }, "advertisement.contract_id"},
		"one for no request":                    {func(m *ententev1.Advertisement) { m.RequestId = "" }, "advertisement.request_id"},
		"one without a revision":                {func(m *ententev1.Advertisement) { m.Revision = 0 }, "advertisement.revision"},
		"one whose revision JSON cannot hold":   {func(m *ententev1.Advertisement) { m.Revision = 1 << 60 }, "advertisement.revision"},
		"a second that follows nothing":         {func(m *ententev1.Advertisement) { m.PreviousHash = nil }, "advertisement.previous_hash"},
		"a first that follows something":        {func(m *ententev1.Advertisement) { m.Revision = 1 }, "advertisement.previous_hash"},
		"one that follows half a hash":          {func(m *ententev1.Advertisement) { m.PreviousHash = make([]byte, 16) }, "advertisement.previous_hash"},
		"one without an exposure":               {func(m *ententev1.Advertisement) { m.Exposure = "" }, "advertisement.exposure"},
		"one whose prices have no currency":     {func(m *ententev1.Advertisement) { m.Price.Currency = "" }, "advertisement.price"},
		"one with a price below zero":           {func(m *ententev1.Advertisement) { m.Price.PerHour["cpu"] = "-1" }, "advertisement.price"},
		"one with more prices than resources":   {func(m *ententev1.Advertisement) { m.Price.PerHour = many2(65) }, "advertisement.price"},
		"one whose cost is out of range": {func(m *ententev1.Advertisement) {
			m.Price.PerHour["cpu"], m.Resources.Amounts["cpu"] = "999999999", "999999999"
		}, "advertisement.price"},
		"one with a lower sum":                  {func(m *ententev1.Advertisement) { m.HourlyPrice.Amount = "0.01" }, "advertisement.hourly_price"},
		"one with the sum in another currency":  {func(m *ententev1.Advertisement) { m.HourlyPrice.Currency = "JPY" }, "advertisement.hourly_price"},
		"one whose notice is below zero":        {func(m *ententev1.Advertisement) { m.Notice = durationpb.New(-time.Hour) }, "advertisement.notice"},
		"one whose period is not whole seconds": {func(m *ententev1.Advertisement) { m.StatementPeriod = durationpb.New(time.Second + 1) }, "advertisement.statement_period"},
		"one of a pool that draws":              {func(m *ententev1.Advertisement) { m.Pool = "a\x1b[2J" }, "advertisement.pool"},
		"one with a runtime class twice":        {func(m *ententev1.Advertisement) { m.RuntimeClasses = []string{"a", "a"} }, "advertisement.runtime_classes"},
		"one with a class that is a path":       {func(m *ententev1.Advertisement) { m.StorageClasses = []string{"a/b"} }, "advertisement.storage_classes"},
		"one with more node labels than can be": {func(m *ententev1.Advertisement) { m.NodeSelector = manyLabels(33) }, "advertisement.node_selector"},
		"one with a limit range of devices": {func(m *ententev1.Advertisement) {
			m.LimitRange.Max = &ententev1.ResourceList{Amounts: map[string]string{"nvidia.com/gpu": "1"}}
		}, "advertisement.limit_range"},
		"one whose least is more than its most": {func(m *ententev1.Advertisement) {
			m.LimitRange.PodMin = &ententev1.ResourceList{Amounts: map[string]string{"cpu": "5"}}
		}, "advertisement.limit_range"},
		"one with a malformed default": {func(m *ententev1.Advertisement) { m.LimitRange.DefaultLimit.Amounts["cpu"] = "much" }, "advertisement.limit_range.default_limit"},
		"one that waits for approval":  {func(m *ententev1.Advertisement) { m.NeedsApproval = true }, "advertisement.needs_approval"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := AdvertisementTo(fullAdvertisement(t))
			tc.change(m)
			_, err := AdvertisementFrom(m, false)
			refused(t, err, tc.field)
		})
	}
}

func TestPricesAreReadFromTheirOneForm(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]*ententev1.PriceList{
		"none": nil, "an empty one": {}, "some": {Currency: "EUR", PerHour: map[string]string{"cpu": "0.025", "nvidia.com/gpu": "1"}},
	} {
		p, err := PriceListFrom("price", m)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := PriceListTo(p); len(m.GetPerHour()) > 0 && !proto.Equal(got, m) || len(m.GetPerHour()) == 0 && got != nil {
			t.Errorf("%s: written as %v", name, got)
		}
	}
	if _, err := PriceListFrom("price", &ententev1.PriceList{Currency: "EUR"}); ReasonOf(err) != peering.ReasonRequestInvalid {
		t.Errorf("a currency of nothing: %v", err)
	}
}

// TestEveryReasonHasItsCode compares Code with the comments of the reasons in package peering.
func TestEveryReasonHasItsCode(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", "peering", "error.go"), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comment := regexp.MustCompile(`^(Reason\w+) is ([A-Z_]+)[.:;]`)
	compared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		text, isText := v.Values[0].(*ast.BasicLit)
		found := comment.FindStringSubmatch(v.Doc.Text())
		if !isText || !strings.HasPrefix(v.Names[0].Name, "Reason") {
			return true
		}
		reason, err := strconv.Unquote(text.Value)
		if err != nil || found == nil || found[1] != v.Names[0].Name {
			t.Errorf("%s: its comment has no code", v.Names[0].Name)
			return true
		}
		if got := Code(peering.Reason(reason)).String(); got != peering.Reason(found[2]).Condition() {
			t.Errorf("%s is %s, and its comment has %s", reason, got, found[2])
		}
		compared++
		return true
	})
	if compared < 50 {
		t.Errorf("%d reasons compared", compared)
	}
	if got := Code("SOMETHING_NEW"); got != codes.Internal {
		t.Errorf("an unknown reason is %s", got)
	}
}

// fuzzed has a decoder read any bytes: what it takes it writes and reads again
// as the same.
func fuzzed[M proto.Message, V any](f *testing.F, empty func() M, seeds []M, read func(M) (V, error), write func(V) M) {
	f.Helper()
	for _, m := range seeds {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := empty()
		if proto.Unmarshal(raw, m) != nil {
			return
		}
		v, err := read(m)
		if err != nil {
			var e *peering.Error
			if !errors.As(err, &e) || e.Reason != peering.ReasonRequestInvalid || len(e.Violations) != 1 {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		again, err := read(write(v))
		if err != nil {
			t.Fatalf("what was taken is refused when it is written again: %v\n%+v", err, v)
		}
		if diff := cmp.Diff(v, again, values); diff != "" {
			t.Fatalf("read again it differs (-first +second)\n%s", diff)
		}
	})
}

func FuzzAskFrom(f *testing.F) {
	fuzzed(f, func() *ententev1.PeeringRequest { return &ententev1.PeeringRequest{} },
		[]*ententev1.PeeringRequest{AskTo(fullAsk(f)), AskTo(peering.Ask{RequestID: "r"})}, AskFrom, AskTo)
}

func FuzzAdvertisementFrom(f *testing.F) {
	fuzzed(f, func() *ententev1.Advertisement { return &ententev1.Advertisement{} },
		[]*ententev1.Advertisement{AdvertisementTo(fullAdvertisement(f))}, signable, AdvertisementTo)
}

func FuzzEnvelopeFrom(f *testing.F) {
	id := peering.ClusterID(strings.Repeat("a", 32))
	seed := EnvelopeTo(peering.Envelope{PayloadType: peering.PayloadType, Payload: []byte("{}"), Signatures: []peering.Signature{{KeyID: id, Sig: []byte{1}}}})
	fuzzed(f, func() *ententev1.Envelope { return &ententev1.Envelope{} }, []*ententev1.Envelope{seed}, EnvelopeFrom, EnvelopeTo)
}

// FuzzOffer reads two messages of a watch, as a client does.
func FuzzOffer(f *testing.F) {
	seed := func(messages ...*ententev1.WatchOfferResponse) {
		var raw [2][]byte
		for i, m := range messages {
			var err error
			if raw[i], err = proto.Marshal(m); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(raw[0], raw[1])
	}
	offer := fullOffer(f)
	offer.Services = []peering.OfferedService{
		{Namespace: "shop", Name: "cart", Type: peering.ServiceClusterSetIP, Ports: []peering.ServicePort{{Name: "http", Protocol: "TCP", AppProtocol: "kubernetes.io/h2c", Port: 80}}},
		{Namespace: "shop", Name: "db", Type: peering.ServiceHeadless},
	}
	less := offer
	less.Resources = amounts(f, map[string]string{"cpu": "1", "pods": "110"})
	seed(OfferTo(offer, nil), OfferTo(less, &offer))
	less.Services = offer.Services[1:]
	seed(OfferTo(offer, nil), OfferTo(less, &offer))
	seed(OfferTo(peering.Offer{Message: "no"}, nil), OfferTo(offer, nil))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var offer peering.Offer
		for _, raw := range [][]byte{first, second} {
			m := &ententev1.WatchOfferResponse{}
			if proto.Unmarshal(raw, m) != nil {
				return
			}
			next, err := OfferFrom(m, offer)
			if err != nil {
				if ReasonOf(err) != peering.ReasonRequestInvalid {
					t.Fatalf("refused with %v", err)
				}
				return
			}
			again, err := OfferFrom(OfferTo(next, nil), peering.Offer{})
			if err != nil {
				t.Fatalf("what was taken is refused when it is written again: %v\n%+v", err, next)
			}
			if next.Compare(again, 0) != peering.Unchanged {
				t.Fatalf("read again it differs:\n%+v\n%+v", next, again)
			}
			offer = next
		}
	})
}

// signable reads an advertisement that can be signed.
func signable(m *ententev1.Advertisement) (peering.Advertisement, error) {
	return AdvertisementFrom(m, false)
}
