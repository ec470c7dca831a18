// A library to load before others. At a test's request the Vulkan device reports that it is lost, to every submission and every
// wait; that its memory is full; or that it lacks an operator.
#include "ggml-backend-impl.h"

#include <vulkan/vulkan.h>

#include <dlfcn.h>

#include <atomic>
#include <cstring>

namespace {

// An event after a number of calls, from which on it lasts.
class event {
public:
    void after(int n_calls) { // negative: never
        n_left  = n_calls;
        is_here = false;
    }
    bool at_call() {
        if (n_left >= 0 && n_left-- == 0) {
            is_here = true;
        }
        return is_here;
    }

private:
    std::atomic<int>  n_left { -1 };
    std::atomic<bool> is_here { false };
};

event lost, full;

PFN_vkQueueSubmit    next_submit;
PFN_vkWaitForFences  next_wait;
PFN_vkGetFenceStatus next_status;
PFN_vkAllocateMemory next_allocate;

VkResult submit(VkQueue queue, uint32_t n, const VkSubmitInfo * infos, VkFence fence) {
    if (!lost.at_call()) {
        return next_submit(queue, n, infos, fence);
    }
    vkQueueWaitIdle(queue); // a lost device does not compute any more
    return VK_ERROR_DEVICE_LOST;
}

VkResult wait(VkDevice device, uint32_t n, const VkFence * fences, VkBool32 all, uint64_t timeout) {
    if (!lost.at_call()) {
        return next_wait(device, n, fences, all, timeout);
    }
    vkDeviceWaitIdle(device);
    return VK_ERROR_DEVICE_LOST;
}

VkResult status(VkDevice device, VkFence fence) {
    if (!lost.at_call()) {
        return next_status(device, fence);
    }
    vkDeviceWaitIdle(device);
    return VK_ERROR_DEVICE_LOST;
}

VkResult allocate(VkDevice device, const VkMemoryAllocateInfo * info, const VkAllocationCallbacks * callbacks, VkDeviceMemory * memory) {
    return full.at_call() ? VK_ERROR_OUT_OF_DEVICE_MEMORY : next_allocate(device, info, callbacks, memory);
}

template <typename F> bool replace(const char * name, const char * ours, PFN_vkVoidFunction & found, F & next, F by) {
    if (!found || strcmp(name, ours)) {
        return false;
    }
    next  = (F) found;
    found = (PFN_vkVoidFunction) by;
    return true;
}

PFN_vkVoidFunction replaced(const char * name, PFN_vkVoidFunction found) {
    replace(name, "vkQueueSubmit", found, next_submit, submit) || replace(name, "vkWaitForFences", found, next_wait, wait) ||
        replace(name, "vkGetFenceStatus", found, next_status, status) ||
        replace(name, "vkAllocateMemory", found, next_allocate, allocate);
    return found;
}

PFN_vkVoidFunction of_device(VkDevice device, const char * name) {
    static const auto next = (PFN_vkGetDeviceProcAddr) dlsym(RTLD_NEXT, "vkGetDeviceProcAddr");
    return replaced(name, next(device, name));
}

// the operator that is lacking, and what the device says of the others
int lacking = -1;
bool (*next_supports)(ggml_backend_dev_t device, const ggml_tensor * op);

bool supports(ggml_backend_dev_t device, const ggml_tensor * op) {
    return (int) op->op != lacking && next_supports(device, op);
}

} // namespace

extern "C" void lose_device_after(int n_calls) { lost.after(n_calls); }
extern "C" void fill_memory_after(int n_calls) { full.after(n_calls); }

extern "C" void lack_operator(void * device, int op) {
    auto & known = ((ggml_backend_dev_t) device)->iface.supports_op;
    if (known != supports) {
        next_supports = known;
        known         = supports;
    }
    lacking = op;
}

extern "C" VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char * name) {
    static const auto next = (PFN_vkGetInstanceProcAddr) dlsym(RTLD_NEXT, "vkGetInstanceProcAddr");
    if (!strcmp(name, "vkGetDeviceProcAddr")) {
        return (PFN_vkVoidFunction) of_device;
    }
    return replaced(name, next(instance, name));
}
