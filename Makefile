# `make` alone lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := help
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules --no-print-directory

# The chart has the version; binaries, image and chart agree.
VERSION := $(shell sed -n 's/^appVersion: *//p' charts/entente/Chart.yaml)
IMAGE := entente/entente:$(VERSION)
IMAGE_TAR := .build/image/entente.tar
# The version with which the API has to stay compatible. Empty skips the comparison.
BREAKING_AGAINST ?= main

# Tools live here, built from source at the versions that their go.mod names. The path
# is relative, so that `make .build/bin/helm` names the rule's target.
BIN := .build/bin
LDFLAGS := -s -w -X github.com/entente-dev/entente/internal/version.Version=$(VERSION)
# After a build: the modules that Go downloads are not named one by one.
quiet = 2>&1 | { grep -v '^go: downloading ' || true; } >&2
GOBUILD := CGO_ENABLED=0 go build -buildvcs=false -ldflags '$(LDFLAGS)'
# All modules of the repository whose go.mod is kept tidy. tools/proto is not: nothing is
# built of it; nor is what only make matrix and make conformance build.
MODULES := $(filter-out tools/proto integration/lab/kube1% integration/lab/metricsserver integration/lab/kueue integration/lab/kuberouter integration/lab/traefik% integration/lab/e2e,$(patsubst ./%,%,$(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path './.build/*'))))
# A failed test is run up to twice more by itself, if at most two failed and none of them
# because of a race: machines stall, and a run lists at its end the repeated tests.
GOTEST = $(CURDIR)/$(BIN)/gotestsum --format pkgname-and-test-fails --hide-summary skipped --rerun-fails=2 --rerun-fails-max-failures=2 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race --jsonfile-timing-events $(CURDIR)/.build/times/$@-$$$$.json
# Of the packages on real clusters, those that count lost packets while a part dies run
# after the others, all at once: more clusters would cause losses, too.
ALONE := ./faults ./twonodes
# Packages whose tests make networks, which stalls all networks of the machine for moments.
RIGS := discovery/mdns internal/fabric internal/preflight tunnel tunnel/firewall
# Simulated hours and floods in one goroutine, or in a synctest bubble: with the race detector
# they take up to ten times as long, and shorter tests cover the same code with it.
LONG := ^(TestAHundredThousandInstances|TestATranslatedPolicyIsNeverWider|TestATunnelIsWrittenWithinItsPeersBudget|TestConditionsOfAPeerThatComesAndGoesAreWithinItsBudget|TestFewAddressesLeaveRoomForOthers|TestFloodsFromManyAddresses|TestFloodsThatLast|TestPeersCannotKeepFlowsOpen|TestPodsThatStayAreReachedAtEveryStep|TestPreviewNamesTheProviderThatReconcileTakes|TestStateWritesOfAPeerAreBounded|TestTheDefaultPoolServes250Clusters|TestUseIsWrittenWithinThePeersBudget)$$
LONGIN := discovery/mdns internal/aliases internal/controller internal/exchange internal/netpolicy
# Packages without goroutines, whose tests run without the race detector.
SEQUENTIAL := internal/archtest internal/charttest peering tunnel/plan
# Tests of tunnel that wait for networks for minutes. They run without the race detector, with which
# ciphers occupy a processor; the other tests of the package cover the concurrency of a fabric.
WAITS := ^(TestWhateverTheNetworkPasses|TestEndToEndProbesFindFaultsThatTunnelProbesMiss|TestKeysOfNodesAreReplacedWithoutLoss|TestSizeThatPassesIsFoundForEachPeer|TestFloodingADeadPeerDoesNotStopALiveOne|TestFabricRepairsItself|TestExposureIsByPortAndSource|TestHostileNodeSendsDirectlyAsItsOwnPodsOnly|TestAHostilePeerReachesExposedPortsOnly|TestAThirdClusterPassesOnListedFlowsOnly|TestPresharedKeysAreReplacedWithoutLoss|TestGatewaysWithoutACommonKeyMeetByTheFirst|TestWorkersReachEachOtherDirectly)$$
# The files that `make generate` writes.
GENERATED := gen api/v1alpha1/zz_generated.deepcopy.go charts/entente/files/crds server/admin/openapi

# What is compiled is the same in each clone, and once for programs and tests.
export GOFLAGS += -trimpath
# For what is built here and needs what is built here: tests and the demo.
export ENTENTE_ROOT := $(CURDIR)
export ENTENTE_HELM := $(CURDIR)/$(BIN)/helm
export ENTENTE_GRPCURL := $(CURDIR)/$(BIN)/grpcurl
export ENTENTE_IMAGE := $(IMAGE)
export ENTENTE_IMAGE_TAR := $(CURDIR)/$(IMAGE_TAR)

.PHONY: help
help: ## List the targets
	@echo 'usage: make TARGET'
	@echo
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

##@ See it

.PHONY: demo
demo: announce build image lab $(BIN)/helm $(BIN)/grpcurl ## Two real clusters peer and share work, step by step (KEEP=1 keeps them running until the next demo)
	@cd integration && go build -buildvcs=false -o ../bin/demo ./cmd/demo $(quiet)
	@bin/demo

.PHONY: demo-lan
demo-lan: announce build image lab $(BIN)/helm $(BIN)/grpcurl ## Two clusters on one LAN find each other and peer by themselves (KEEP=1 keeps them running until the next demo)
	@cd integration && go build -buildvcs=false -o ../bin/demo ./cmd/demo $(quiet)
	@bin/demo -lan

.PHONY: announce
announce:
	@echo 'building what the demo needs: the first time Go downloads modules and compiles for some minutes'

.PHONY: lab
lab: ## Build bin/lab: real clusters on this machine (bin/lab up, bin/lab down)
	@cd integration && go build -buildvcs=false -o ../bin/lab ./lab/cmd/lab $(quiet)

##@ Build

.PHONY: build
build: ## Build bin/entente and bin/entented
	@$(GOBUILD) -o bin/ ./cmd/entente ./cmd/entented $(quiet)

.PHONY: image
image: build ## Build the container image as an archive, .build/image/entente.tar
	@go run -buildvcs=false ./internal/image -binary bin/entented -output $(IMAGE_TAR) -tag $(IMAGE) -version $(VERSION) -arch "$$(go env GOARCH)" $(quiet)
	@echo '$(IMAGE_TAR): $(IMAGE)'

.PHONY: generate
generate: .build/proto/.stamp $(BIN)/buf $(BIN)/controller-gen $(BIN)/protoc-gen-go $(BIN)/protoc-gen-go-grpc $(BIN)/protoc-gen-grpc-gateway $(BIN)/protoc-gen-openapiv3 ## Generate gen/, deepcopy functions, custom resource definitions, docs/limits.md and docs/resources.md
	@$(BIN)/buf generate
	@$(BIN)/controller-gen object paths=./api/...
	@$(BIN)/controller-gen crd paths=./api/... output:crd:dir=charts/entente/files/crds
	@install -m 0644 gen/openapi/entente/v1/admin.openapi.json server/admin/openapi/
	@go test ./internal/archtest -count 1 -run '^Test(Limits|Resources)Doc$$' -update >/dev/null

.PHONY: pictures
pictures: ## Draw docs/demo.svg and docs/info.svg from the output of the demo in docs/pictures
	@for p in demo info; do (cd tools/picture && go run .) <docs/pictures/$$p.txt >docs/$$p.svg; done

.PHONY: clean
clean: ## Remove build output, but not the lab's cache (bin/lab down ends a lab)
	@rm -rf bin .build

##@ Test

.PHONY: test
test: ## All tests: unit with the race detector, controllers and end to end on real clusters
	@rm -rf .build/times
	@$(MAKE) --jobs 3 rigs waits live
	@$(MAKE) together
	@$(MAKE) alone
	@$(MAKE) beside

.build/times:
	@mkdir -p $@

.PHONY: slowest
slowest: $(BIN)/gotestsum ## List the slowest tests of the last run
	@cat .build/times/*.json | $(CURDIR)/$(BIN)/gotestsum tool slowest --threshold 5s

.PHONY: unit
unit: rigs waits beside ## Unit tests, with the race detector

.PHONY: rigs
rigs: $(BIN)/gotestsum | .build/times
	@CGO_ENABLED=1 $(GOTEST) --packages '$(RIGS:%=./%)' -- -race -count 1 -skip '$(LONG)|$(WAITS)' -timeout 40m

.PHONY: waits
waits: $(BIN)/gotestsum | .build/times
	@$(GOTEST) --packages ./tunnel -- -count 1 -run '$(WAITS)' -parallel 3 -timeout 40m

# Test binaries are linked without debug information, as linking takes a third of the time.
# The linters run vet. More packages run at once than there are processors, since tests wait
# for clocks.
#
# What SEQUENTIAL lists starts no goroutine, so it cannot race, and with the race detector all
# interleavings of two clusters take eight times as long.
.PHONY: beside
beside: $(BIN)/helm $(BIN)/gotestsum | .build/times
	@CGO_ENABLED=1 $(GOTEST) --packages "$$(go list ./... | grep -v $(patsubst %,-e '/entente/%$$',$(SEQUENTIAL) $(RIGS)))" -- -race -vet off -ldflags '-s -w' -p 4 -skip '$(LONG)' -timeout 40m
	@$(GOTEST) --packages '$(LONGIN:%=./%)' -- -run '$(LONG)' -timeout 20m
	@ENTENTE_CHARTTEST=must $(GOTEST) --packages '$(SEQUENTIAL:%=./%)' -- -vet off -ldflags '-s -w' -timeout 20m
	@cd tools/dsse && go test ./...
	@cd tools/alerts && go test ./...

.PHONY: e2e
e2e: together alone ## End to end on real clusters (Linux, root)

# Three packages at once; control on as many pairs of clusters as -parallel says.
.PHONY: together
together: build image lab $(BIN)/helm $(BIN)/grpcurl $(BIN)/gotestsum | .build/times
	@rm -f .build/secrets
	@cd integration && $(GOTEST) --packages "$$(go list ./... | grep -v $(ALONE:./%=-e '/%$$'))" -- -p 3 -parallel 2 -count 1 -timeout 80m
	@if [ -s .build/secrets ]; then echo 'secrets were written to logs:' >&2; cat .build/secrets >&2; exit 1; fi

.PHONY: alone
alone: build image lab $(BIN)/helm $(BIN)/gotestsum | .build/times
	@cd integration && $(GOTEST) --packages '$(ALONE)' -- -p 2 -count 1 -timeout 80m

# On an API server of their own, from the lab's cache: the chart's rights and policies, and
# virtual nodes and the provider under these. charttest checks that the names of these
# tests end like this.
.PHONY: live
live: lab $(BIN)/helm $(BIN)/gotestsum | .build/times ## Tests that need only an API server: the chart, virtual nodes, the provider (Linux)
	@if [ "$$(go env GOOS)" != linux ]; then echo 'live: the lab runs on Linux only: skipped'; exit 0; fi; \
	server=$$(bin/lab bin kube-apiserver); \
	KUBEBUILDER_ASSETS=$${server%/*} KUBEBUILDER_CONTROLPLANE_START_TIMEOUT=5m ENTENTE_LIVE=must \
		$(GOTEST) --packages './internal/agent ./internal/charttest ./internal/clusterset ./internal/homeapi ./internal/limitrange ./internal/offload ./internal/profiles ./internal/records ./internal/resolver ./vk' -- -count 1 -timeout 30m -run 'OnARealAPIServer$$'

# Tests that make test leaves out because they take long or need programs that a
# machine may lack: avahi-daemon, avahi-utils, bind9, bind9-dnsutils, dbus.
.PHONY: matrix
matrix: build image lab $(BIN)/helm $(BIN)/grpcurl ## Discovery beside other programs, clusters on LANs that come, go, move and change, what reaches what in all setups, paths through a third cluster and inside tunnels, clusters of different IP families, faults that doctor names, a fenced provider that is cut off, agents that hand over to a standby, the end of peerings and installs in all states, a little chaos under pods, autoscaling by the usage of pods abroad, third-party ingress controller, queue for Jobs and firewall for NetworkPolicies, volumes that move while the command is killed, databases with members in two clusters, images from a registry with a password, kills of either side at each moment, the demo on the oldest, a middle and the newest version of Kubernetes, the webhooks and an install on the oldest, and tunnels over networks of all MTUs and after all kinds of damage (Linux, root, five hours)
	@ENTENTE_INTEROP=must ENTENTE_INTEROP_LONG=1 go test -count 1 -timeout 20m ./discovery/...
	@cd integration && ENTENTE_MATRIX=1 go test -p 1 -count 1 -timeout 1h -v -run '^(TestLabOfClustersThatShareALAN|TestLabOfOtherNetworks|TestClustersOfAGroupPeerByThemselves)$$' ./lab ./control
	@cd integration && ENTENTE_MATRIX=1 go test -p 1 -count 1 -timeout 1h -v ./lan
	@cd integration && ENTENTE_MATRIX=1 ENTENTE_STRICT=1 ENTENTE_IPAM=shared-pool go test -count 1 -timeout 40m -v ./twonodes
	@cd integration && ENTENTE_MATRIX=1 ENTENTE_CNI=flannel ENTENTE_SUBNETS=2 go test -count 1 -timeout 40m -v ./twonodes
	@cd integration && ENTENTE_MATRIX=1 go test -count 1 -timeout 3h -v -run '^TestMatrix$$' ./matrix
	@cd integration && ENTENTE_MATRIX=1 go test -count 1 -timeout 50m -v ./paths
	@cd integration && ENTENTE_MATRIX=1 go test -count 1 -timeout 20m -v ./families
	@cd integration && ENTENTE_MATRIX=1 go test -count 1 -timeout 100m -v -run '^(TestConsumerBehindNAT|TestProviderBehindNAT|TestProviderIsAway|TestTunnelsOutliveTheAPIServers|TestDoctorNamesFaults|TestNothingRunsTwiceUnderAFence|TestAStandbyAgentTakesOver|TestAnEndLeavesNothing|TestChaosReachesNoPod)$$' ./faults
	@cd integration && ENTENTE_MATRIX=1 go test -count 1 -timeout 40m -v -run '^(TestFabricRepairsItself|TestPodsAbroadPullWithTheSecretsOfHome|TestPodsAbroadResolveTheNamesOfHome|TestTopAndAutoscalingCountPodsAbroad|TestAgentsKilledWhilePeering|TestAMoveSurvivesKills|TestVolumesFollowTheirPods)$$' ./e2e
	@cd integration && ENTENTE_MATRIX=1 go test -count 1 -timeout 40m -v -run '^(TestPostgreSQLFailsOverBetweenClusters|TestEtcdSurvivesTheRestartOfEitherAgent)$$' ./databases
	@cd integration && ENTENTE_MATRIX=1 go test -count 1 -timeout 90m -v ./neighbours
	@cd integration && ENTENTE_MATRIX=1 ENTENTE_CONTROL_ROUNDS=20 ENTENTE_CONTROL_CYCLES=20 go test -count 1 -timeout 50m -v -run '^(TestAContractIsRenewedBeforeItsEnd|TestAgentsTooFarApartReportIt|TestAnAgentMayDieAtAnyMoment|TestAPeeringSurvivesAKillInEachPart|TestCertificatesAndKeysChangeUnderLoad|TestClustersThatListEachOtherPeerByThemselves|TestForgottenPeersStayForgotten|TestTheCountsOfBothSidesAgree|TestPeeringAgainAndAgainLeavesNothing|TestThreePeersThatWriteWithoutEndLeaveTheClusterWritable)$$' ./control
	@cd integration && go build -buildvcs=false -o ../bin/demo ./cmd/demo $(quiet)
	@for version in 1.32 1.34 1.37; do bin/demo -kubernetes $$version; done
	@server=$$(bin/lab bin --kubernetes 1.32 kube-apiserver); KUBEBUILDER_ASSETS=$${server%/*} KUBEBUILDER_CONTROLPLANE_START_TIMEOUT=5m ENTENTE_LIVE=must \
		go test -count 1 -timeout 20m -v -run '^(TestDaemonSetsAreKeptOffByTheWebhookOnARealAPIServer|TestPodsAreCreatedWhileTheWebhookIsDownOnARealAPIServer|TestInstallDoesNotWaitForItsOwnKindsOnARealAPIServer)$$' ./internal/charttest
	@ENTENTE_MATRIX=1 ENTENTE_ROUNDS=50 go test -count 1 -timeout 1h -v -run '^(TestWhateverTheNetworkPasses|TestFabricRepairsItself|TestFirewallFollowsAnySequence)$$' ./tunnel ./tunnel/firewall

.PHONY: soak
soak: build image lab $(BIN)/helm $(BIN)/grpcurl ## Long runs: kill loops, rotation, an hour of attack on etcd, and 60 random faults under 200 pods (hours)
	@cd integration && ENTENTE_MATRIX=1 ENTENTE_ROUNDS=$${ENTENTE_ROUNDS:-100} ENTENTE_ATTACK=$${ENTENTE_ATTACK:-1h} ENTENTE_SOAK=1 go test -count 1 -parallel 1 -timeout 6h -v -run '^(TestThreePeersThatWriteWithoutEndLeaveTheClusterWritable|TestAPeeringSurvivesAKillInEachPart|TestCertificatesAndKeysChangeUnderLoad|TestAPeerForgottenWhileItWasDeadForgetsToo)$$' ./control
	@cd integration && ENTENTE_SOAK=1 go test -count 1 -timeout 90m -v -run '^TestChaosReachesNoPod$$' ./faults

.PHONY: bench
bench: build image lab $(BIN)/helm $(BIN)/grpcurl ## Benchmarks: tunnels compared with plain WireGuard, failover, the cost of 250 peers to an agent and of one peer at all of its limits, offloaded pods compared with native ones, how fast clusters on a LAN are found, and how soon traffic passes after a peering (Linux, root)
	@go test -run '^$$' -bench . -benchmem ./...
	@TUNNEL_BENCH=1 ENTENTE_ROUNDS=30 go test -count 1 -parallel 1 -timeout 3h -v -run '^(TestFabricBesidePlainWireGuard|TestFailoverGaps|TestKeysOfNodesAreReplacedWithoutLoss|TestPresharedKeysAreReplacedWithoutLoss|TestMemoryUnderFlood|TestTunnelProcessAtRest|TestFabricAtRest|TestAChangeOfOnePeerRewritesNothingOfOthers)$$' ./tunnel
	@cd integration && go run -buildvcs=false ./bench
	@cd integration && go run -buildvcs=false ./bench -limits 100
	@cd integration && go run -buildvcs=false ./bench -pods 1,100,1000,5000 -network
	@cd integration && go test -run '^$$' -bench . -benchtime 1x -timeout 30m -v ./lan
	@cd integration && go test -run '^$$' -bench FirstTraffic -benchtime 1x -timeout 30m -v ./e2e

.PHONY: conformance
conformance: build image lab $(BIN)/helm $(BIN)/grpcurl ## The conformance suite of the Multi-Cluster Services API, the virtual-kubelet project's tests for providers, and tests of Kubernetes against a virtual node (Linux, root, an hour)
	@cd integration && ENTENTE_CONFORMANCE=1 go test -p 1 -count 1 -timeout 100m -v ./conformance/...
	@cd integration && ENTENTE_MATRIX=1 go test -count 1 -timeout 40m -v -run '^(TestTopAndAutoscalingCountPodsAbroad|TestVolumesFollowTheirPods)$$' ./e2e

##@ Check

.PHONY: check
check: check-format lint check-generate check-tidy check-arch check-house check-chart check-proto ## All checks that a change has to pass besides the tests

.PHONY: house
house: ## Measure the product's code: lines, functions, exported names, shapes of a contract; fails beyond the limits
	@cd tools/house && go run -buildvcs=false . "$(CURDIR)"

.PHONY: check-house
check-house:
	@cd tools/house && go run -buildvcs=false . -q "$(CURDIR)"

.PHONY: fmt
fmt: $(BIN)/golangci-lint $(BIN)/buf ## Format Go and protos
	@$(BIN)/golangci-lint fmt
	@cd integration && ../$(BIN)/golangci-lint fmt
	@$(BIN)/buf format -w proto

.PHONY: lint
lint: $(BIN)/golangci-lint ## Lint Go
	@$(BIN)/golangci-lint run ./...
	@cd integration && ../$(BIN)/golangci-lint run ./...

.PHONY: check-format
check-format: $(BIN)/golangci-lint $(BIN)/buf
	@$(BIN)/golangci-lint fmt --diff
	@cd integration && ../$(BIN)/golangci-lint fmt --diff
	@$(BIN)/buf format -d --exit-code proto

.PHONY: check-generate
check-generate:
	@sums() { find $(GENERATED) -type f -print0 | sort -z | xargs -0 sha256sum; }; \
	before=$$(sums); $(MAKE) generate; \
	if ! diff <(echo "$$before") <(sums); then \
		echo 'what is generated was out of date; it is not any more: look at it and commit it' >&2; exit 1; \
	fi

.PHONY: check-tidy
check-tidy:
	@for module in $(MODULES); do \
		(cd "$$module" && go mod tidy -diff) || { echo "$$module: go mod tidy would change it" >&2; exit 1; }; \
	done

.PHONY: check-arch
check-arch:
	@go test ./internal/archtest

.PHONY: check-chart
check-chart: $(BIN)/helm
	@$(BIN)/helm lint --strict --quiet charts/entente

.PHONY: check-proto
check-proto: .build/proto/.stamp $(BIN)/buf
	@$(BIN)/buf lint
	@if [ -z '$(BREAKING_AGAINST)' ] || ! git rev-parse --verify --quiet '$(BREAKING_AGAINST)^{commit}' >/dev/null; then \
		echo 'buf breaking: nothing to compare with'; exit 0; \
	fi; \
	rm -rf .build/against && mkdir -p .build/against/.build; \
	git archive '$(BREAKING_AGAINST)' proto buf.yaml | tar -x -C .build/against; \
	cp -r .build/proto .build/against/.build/proto; \
	(cd .build/against && $(CURDIR)/$(BIN)/buf build proto -o ../against.binpb); \
	$(BIN)/buf breaking proto --against .build/against.binpb

# The tools. Each group is a module of its own, so that none affects the versions
# of another or of the product.

tool = cd $(1) && CGO_ENABLED=0 go build -buildvcs=false -ldflags '-s -w $(3)' -o $(CURDIR)/$(BIN)/ $(2) $(quiet)

$(BIN)/buf $(BIN)/controller-gen $(BIN)/protoc-gen-go $(BIN)/protoc-gen-go-grpc $(BIN)/protoc-gen-grpc-gateway $(BIN)/protoc-gen-openapiv3 &: tools/go.mod tools/go.sum
	@echo 'building buf, controller-gen and four protoc plugins (3 min the first time)'
	@$(call tool,tools,tool,)

$(BIN)/helm: tools/helm/go.mod tools/helm/go.sum
	@echo 'building helm (3 min the first time)'
	@$(call tool,tools/helm,helm.sh/helm/v4/cmd/helm,-X helm.sh/helm/v4/internal/version.version=$(call pinned,helm,helm.sh/helm/v4))

$(BIN)/golangci-lint: tools/golangci/go.mod tools/golangci/go.sum
	@echo 'building golangci-lint (2 min the first time)'
	@$(call tool,tools/golangci,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,-X main.version=$(call pinned,golangci,github.com/golangci/golangci-lint/v2))

$(BIN)/grpcurl: tools/grpcurl/go.mod tools/grpcurl/go.sum
	@echo 'building grpcurl (1 min the first time)'
	@$(call tool,tools/grpcurl,github.com/fullstorydev/grpcurl/cmd/grpcurl,-X main.version=$(call pinned,grpcurl,github.com/fullstorydev/grpcurl))

$(BIN)/gotestsum: tools/gotestsum/go.mod tools/gotestsum/go.sum
	@echo 'building gotestsum'
	@$(call tool,tools/gotestsum,gotest.tools/gotestsum,-X gotest.tools/gotestsum/cmd.version=$(call pinned,gotestsum,gotest.tools/gotestsum))

# The version of a module in the go.mod of a tool.
pinned = $(shell sed -n 's|^\(require\)\{0,1\}[[:space:]]*$(2) \(v[^ ]*\).*|\2|p' tools/$(1)/go.mod)

# The protos that ours import, from the Go modules that ship them; go.sum pins
# their content.
.build/proto/.stamp: tools/proto/go.mod tools/proto/go.sum
	@rm -rf .build/proto && mkdir -p .build/proto/google/api .build/proto/buf/validate
	@cd tools/proto && go mod download github.com/grpc-ecosystem/grpc-gateway github.com/bufbuild/protovalidate
	@googleapis="$$(cd tools/proto && go list -m -f '{{.Dir}}' github.com/grpc-ecosystem/grpc-gateway)/third_party/googleapis"; \
	validate="$$(cd tools/proto && go list -m -f '{{.Dir}}' github.com/bufbuild/protovalidate)/proto/protovalidate"; \
	install -m 0644 "$$googleapis"/google/api/{annotations,http}.proto .build/proto/google/api/; \
	install -m 0644 "$$validate"/buf/validate/validate.proto .build/proto/buf/validate/
	@touch $@
