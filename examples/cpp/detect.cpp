// Detects objects in a table of events with an exported detector, without Python and without FATE.
//
//     fate export fate-s-nano nano.onnx --with-encoder
//     fate convert drive.raw drive.csv
//     ./detect nano.onnx drive.csv 50 0.4
//
// Prints one line for each box: end of the window in µs, class id, score, x1, y1, x2, y2 in pixels.
// It is for heads with objectness (fate-s, s5-vit, rvt); ../../docs/guides/export.md describes the file.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <onnxruntime_cxx_api.h>

struct Events {  // in time order
    std::vector<int64_t> t;
    std::vector<int16_t> x, y;
    std::vector<uint8_t> p;
};

struct Box {
    float x1, y1, x2, y2, score;
    int class_id;
    float area() const { return (x2 - x1) * (y2 - y1); }
};

constexpr float kMaxOverlap = 0.45f;

Events read_events(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error(path + ": cannot be read");
    Events events;
    std::string line;
    long long t;
    int x, y, p;
    while (std::getline(file, line)) {
        if (std::sscanf(line.c_str(), "%lld,%d,%d,%d", &t, &x, &y, &p) != 4) continue;  // the header
        events.t.push_back(t);
        events.x.push_back(static_cast<int16_t>(x));
        events.y.push_back(static_cast<int16_t>(y));
        events.p.push_back(static_cast<uint8_t>(p));
    }
    return events;
}

bool overlap(const Box& a, const Box& b) {
    const float width = std::min(a.x2, b.x2) - std::max(a.x1, b.x1);
    const float height = std::min(a.y2, b.y2) - std::max(a.y1, b.y1);
    if (width <= 0 || height <= 0) return false;
    const float common = width * height;
    return common > kMaxOverlap * (a.area() + b.area() - common);
}

// Greedy non-maximum suppression among boxes of a class, best first.
std::vector<Box> suppress(std::vector<Box> boxes) {
    std::stable_sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return a.score > b.score; });
    std::vector<Box> kept;
    for (const Box& box : boxes) {
        const bool beaten = std::any_of(kept.begin(), kept.end(), [&](const Box& better) {
            return better.class_id == box.class_id && overlap(better, box);
        });
        if (!beaten) kept.push_back(box);
    }
    return kept;
}

int run(const std::string& model, const Events& events, double hz, float threshold) {
    Ort::Env environment(ORT_LOGGING_LEVEL_WARNING, "fate");
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(2);
    Ort::Session session(environment, model.c_str(), options);
    Ort::AllocatorWithDefaultOptions allocator;
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);

    std::vector<std::string> inputs, outputs;
    for (size_t i = 0; i < session.GetInputCount(); ++i) inputs.push_back(session.GetInputNameAllocated(i, allocator).get());
    for (size_t i = 0; i < session.GetOutputCount(); ++i)
        outputs.push_back(session.GetOutputNameAllocated(i, allocator).get());
    std::vector<const char*> input_names, output_names;
    for (const auto& name : inputs) input_names.push_back(name.c_str());
    for (const auto& name : outputs) output_names.push_back(name.c_str());

    // The state is zero at the start. The output "new_state.NAME" of a window is the input "state.NAME" of the next.
    std::map<std::string, Ort::Value> state;
    for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i].rfind("state.", 0) != 0) continue;
        const auto shape = session.GetInputTypeInfo(i).GetTensorTypeAndShapeInfo().GetShape();
        auto value = Ort::Value::CreateTensor<float>(allocator, shape.data(), shape.size());
        std::fill_n(value.GetTensorMutableData<float>(), value.GetTensorTypeAndShapeInfo().GetElementCount(), 0.0f);
        state.emplace(inputs[i], std::move(value));
    }

    const int64_t length = static_cast<int64_t>(1e6 / hz + 0.5), one = 1, two = 2;
    size_t begin = 0;
    for (int64_t start = events.t.front(); start <= events.t.back(); start += length) {
        const size_t end = std::lower_bound(events.t.begin(), events.t.end(), start + length) - events.t.begin();
        const int64_t count = static_cast<int64_t>(end - begin);
        std::vector<int32_t> t_us(count);
        for (int64_t i = 0; i < count; ++i) t_us[i] = static_cast<int32_t>(events.t[begin + i] - start);
        std::vector<int16_t> x(events.x.begin() + begin, events.x.begin() + end);
        std::vector<int16_t> y(events.y.begin() + begin, events.y.begin() + end);
        std::vector<uint8_t> p(events.p.begin() + begin, events.p.begin() + end);
        int64_t offsets[] = {0, count}, start_us[] = {start}, duration_us[] = {length};

        std::vector<Ort::Value> values;
        for (const auto& name : inputs) {
            if (name == "t_us") values.push_back(Ort::Value::CreateTensor(memory, t_us.data(), count, &count, 1));
            else if (name == "x") values.push_back(Ort::Value::CreateTensor(memory, x.data(), count, &count, 1));
            else if (name == "y") values.push_back(Ort::Value::CreateTensor(memory, y.data(), count, &count, 1));
            else if (name == "p") values.push_back(Ort::Value::CreateTensor(memory, p.data(), count, &count, 1));
            else if (name == "offsets") values.push_back(Ort::Value::CreateTensor(memory, offsets, 2, &two, 1));
            else if (name == "start_us") values.push_back(Ort::Value::CreateTensor(memory, start_us, 1, &one, 1));
            else if (name == "duration_us") values.push_back(Ort::Value::CreateTensor(memory, duration_us, 1, &one, 1));
            else values.push_back(std::move(state.at(name)));
        }
        auto found = session.Run(Ort::RunOptions{nullptr}, input_names.data(), values.data(), values.size(),
                                 output_names.data(), output_names.size());
        const float *corners = nullptr, *classes = nullptr, *objectness = nullptr;
        int64_t queries = 0, class_count = 0;
        for (size_t i = 0; i < outputs.size(); ++i) {
            if (outputs[i] == "boxes") corners = found[i].GetTensorData<float>();
            if (outputs[i] == "objectness") objectness = found[i].GetTensorData<float>();
            if (outputs[i] == "class_scores") {
                const auto shape = found[i].GetTensorTypeAndShapeInfo().GetShape();
                classes = found[i].GetTensorData<float>(), queries = shape[1], class_count = shape[2];
            }
        }
        std::vector<Box> boxes;
        for (int64_t q = 0; q < queries; ++q) {
            const float* of = classes + q * class_count;
            const int best = static_cast<int>(std::max_element(of, of + class_count) - of);
            const float score = objectness[q] * of[best], *c = corners + 4 * q;
            if (score >= threshold) boxes.push_back({c[0], c[1], c[2], c[3], score, best});
        }
        for (const Box& box : suppress(std::move(boxes)))
            std::printf("%lld %d %.4f %.2f %.2f %.2f %.2f\n", static_cast<long long>(start + length), box.class_id,
                        box.score, box.x1, box.y1, box.x2, box.y2);
        for (size_t i = 0; i < outputs.size(); ++i)
            if (outputs[i].rfind("new_state.", 0) == 0) state.at(outputs[i].substr(4)) = std::move(found[i]);
        begin = end;
    }
    return 0;
}

int main(int count, char** given) {
    if (count != 5) {
        std::cerr << "expected: detect MODEL.onnx EVENTS.csv HZ THRESHOLD\n";
        return 2;
    }
    try {
        const Events events = read_events(given[2]);
        if (events.t.empty()) throw std::runtime_error(std::string(given[2]) + ": has no events");
        return run(given[1], events, std::atof(given[3]), static_cast<float>(std::atof(given[4])));
    } catch (const std::exception& error) {
        std::cerr << "error: " << error.what() << "\n";
        return 1;
    }
}
